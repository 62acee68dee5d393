"""Ordering keys when thousands of messages become due at once: in order, and one portion for each call."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from nightmail.message import Delivery
from nightmail.outcome import Done, WriteResult
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore, script_calls
from nightmail.stores.redis.scripts import Script, script
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, MINUTE, QUEUE, SECOND, message
from testkit.pytest_plugin import provide
from testkit.servers.redis import Redis
from tests.stores.redis.support import client, open_store

pytestmark = pytest.mark.redis

PORTION = 1000
MILLION = 1_000_000
TAG = "{nightmail:orders}"
T = TypeVar("T")

# More followers like the last one. KEYS: the queue's tag; ARGV: the ordering key, and how many.
COPY_THE_LAST = """
    local tag, key = KEYS[1], ARGV[1]
    local last = redis.call('GET', tag .. ':last')
    local fields = redis.call('HGETALL', tag .. ':m:' .. last)
    local due = redis.call('ZSCORE', tag .. ':blocked', last)
    local first, process = tonumber(last:sub(1, 13), 16), last:sub(14)
    local line, blocked = {}, {}
    for place = 1, tonumber(ARGV[2]) do
        last = string.format('%013x', first + place) .. process
        redis.call('HSET', tag .. ':m:' .. last, unpack(fields))
        line[#line + 1], line[#line + 2] = 0, key .. '\\0' .. last
        blocked[#blocked + 1], blocked[#blocked + 2] = due, last
    end
    redis.call('ZADD', tag .. ':lines', unpack(line))
    redis.call('ZADD', tag .. ':blocked', unpack(blocked))
    redis.call('SET', tag .. ':last', last)
"""

# Put before a script: each of its calls counts for one, and so does each value in an answer.
COUNT = """
    local server = redis
    local function counted(answer)
        server.call('INCRBY', 'cost', 1 + (type(answer) == 'table' and #answer or 0))
        return answer
    end
    local redis = setmetatable({
        call = function(...) return counted(server.call(...)) end,
        pcall = function(...) return counted(server.pcall(...)) end,
    }, { __index = server })
"""


def counted(name: str, *, flags: bool = True) -> Script:
    """The script of this name, which counts what it asks for."""
    plain = script(name, flags=flags)
    text = plain.flags + COUNT + plain.text.removeprefix(plain.flags)
    return replace(plain, text=text, digest=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@pytest.fixture
def server_in_memory() -> Iterator[str]:
    """A server of its own, which writes nothing to the disk and takes all it has with it."""
    with provide(Redis(options={"appendonly": "no"})) as server:
        yield server.url


async def copy_the_last(own: Any, count: int) -> None:
    """So many more followers in the line of `k`; more at once would overflow Lua's stack."""
    async with own.pipeline(transaction=False) as pipeline:
        for done in range(0, count, PORTION):
            pipeline.eval(COPY_THE_LAST, 1, TAG, "k", min(PORTION, count - done))
        await pipeline.execute()


async def everything(own: Any) -> dict[bytes, Any]:
    """What the queue consists of, with numbers in place of its ids."""
    ids = sorted(key[-16:] for key in await own.keys(f"{TAG}:m:*"))
    numbers = {id_: b"%d" % place for place, id_ in enumerate(ids)}

    def told(value: Any) -> Any:
        if isinstance(value, bytes):
            for id_, number in numbers.items():
                value = value.replace(id_, number)
            return value
        if isinstance(value, dict):
            return {told(name): told(each) for name, each in value.items()}
        return value

    found = {}
    for key in await own.keys(f"{TAG}*"):
        match await own.type(key):
            case b"hash":
                value: Any = await own.hgetall(key)
            case b"zset":
                value = dict(await own.zrange(key, 0, -1, withscores=True))
            case _:
                value = await own.get(key)
        found[told(key)] = told(value)
    return found


async def drained(store: RedisStore, limit: int = 100) -> list[list[Delivery]]:
    """Everything that is due, each claim as it came, until one says that this was all."""
    claims: list[list[Delivery]] = []
    while True:
        claimed = await store.claim([QUEUE], limit=limit, lease=LEASE, token=uuid4())
        claims.append(list(claimed.deliveries))
        await store.settle([Settlement(each, Done()) for each in claimed.deliveries])
        if not claimed.full and not claimed.deliveries:
            return claims


async def commands(own: object) -> int:
    """How many commands the server has carried out, those of scripts included."""
    found = await own.info("commandstats")  # type: ignore[attr-defined]  # redis-py's types are not ours to mend
    return sum(each["calls"] for each in found.values())


async def test_a_key_whose_messages_become_due_by_the_thousand_goes_in_order(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        count = 2 * PORTION + 500
        # The later a message was published, the earlier it is due.
        await store.publish_batch(
            [
                message(b"%d" % number, ordering_key="k", due=HOUR - number * timedelta(milliseconds=1))
                for number in range(count)
            ]
        )
        clock.advance(2 * HOUR)

        found: list[int] = []
        for _ in range(20):
            claimed = await store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4())
            found += [int(each.body) for each in claimed.deliveries]
            await store.settle([Settlement(each, Done()) for each in claimed.deliveries])
            assert claimed.full or claimed.deliveries

        assert found == list(range(len(found)))
        assert len(found) > 10


async def test_while_one_key_lines_up_the_others_and_those_without_a_key_are_delivered(
    redis_url: str,
) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        await store.publish(message(b"head", ordering_key="long"))
        await store.publish_batch(
            [
                message(b"%d" % number, ordering_key="long", due=MINUTE - number * timedelta(milliseconds=1))
                for number in range(3 * PORTION)
            ]
        )
        clock.advance(HOUR)
        await store.publish_batch([message(b"plain"), message(b"keyed", ordering_key="other")])

        first = await store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4())

        # The lowest id of the long line may be among those that do not stand in it yet.
        assert [each.body for each in first.deliveries] == [b"plain", b"keyed"]
        assert first.full

        bodies = [each.body for claims in await drained(store) for each in claims]
        assert bodies == [b"head", *(b"%d" % number for number in range(3 * PORTION))]


async def test_keys_with_one_delayed_message_each_are_claimed_at_once(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        many = 2 * PORTION
        await store.publish_batch(
            [message(b"low %d" % number, ordering_key=str(number), due=HOUR) for number in range(many)]
        )
        await store.publish_batch(
            [message(b"high %d" % number, ordering_key=str(number), due=MINUTE) for number in range(many)]
        )
        clock.advance(2 * HOUR)

        claimed = await store.claim([QUEUE], limit=100, lease=LEASE, token=uuid4())

        assert len(claimed.deliveries) == 100
        assert all(each.body.startswith(b"low") for each in claimed.deliveries)


async def test_one_call_lines_up_one_portion_however_many_are_due(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        counts = []
        for size in (12, 24):
            await own.flushdb()
            await store.migrate()
            await store.publish_batch(
                [message(ordering_key=str(number % 50), due=SECOND) for number in range(size * PORTION)]
            )
            clock.advance(HOUR)
            before = await commands(own)
            await store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4())
            counts.append(await commands(own) - before)

        assert counts[1] < 1.1 * counts[0]


async def test_copies_of_a_follower_are_what_publishing_leaves(redis_url: str) -> None:
    async with open_store(redis_url, clock=ManualClock()) as store, client(redis_url) as own:
        await store.publish_batch([message(b"line", ordering_key="k") for _ in range(6)])
        published = await everything(own)
        await own.flushdb()
        await store.migrate()
        await store.publish_batch([message(b"line", ordering_key="k") for _ in range(2)])
        await copy_the_last(own, 4)

        assert await everything(own) == published


async def test_a_claim_costs_the_same_with_a_million_messages_of_one_key(
    server_in_memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_calls, "script", counted)
    costs = []
    for followers in (10, MILLION):
        async with client(server_in_memory) as own:
            await own.flushdb()
            async with open_store(server_in_memory) as store:
                await store.publish_batch([message(b"line", ordering_key="k") for _ in range(2)])
                await copy_the_last(own, followers - 1)
                await store.publish_batch([message(b"other") for _ in range(5)])
                costs.append(await costs_of_a_line(store, own))

    assert costs[0] == costs[1]


async def costs_of_a_line(store: RedisStore, own: Any) -> list[int]:
    """What it costs to claim the first and what is behind its line, to claim nothing, to settle, to claim the next."""

    async def cost(work: Awaitable[T]) -> tuple[T, int]:
        await own.delete("cost")
        return await work, int(await own.get("cost"))

    async def claimed(*bodies: bytes) -> tuple[list[Delivery], int]:
        found, calls = await cost(store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4()))
        assert [each.body for each in found.deliveries] == [*bodies]
        assert not found.full
        return list(found.deliveries), calls

    first, free = await claimed(b"line", *[b"other"] * 5)
    _, held = await claimed()
    results, settled = await cost(store.settle([Settlement(each, Done()) for each in first]))
    assert set(results) == {WriteResult.WRITTEN}
    _, again = await claimed(b"line")
    return [free, held, settled, again]
