"""The keys: all of a queue in one slot whatever its name, none with an end, and what they are called."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis as Client
from redis.asyncio import RedisCluster
from redis.crc import key_slot

from nightmail.outcome import Dead, Done
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore
from nightmail.stores.redis.ids import Ids, digits
from nightmail.stores.redis.keys import Keys
from nightmail.testing.conformance.build import HOUR, message
from nightmail.testing.conformance.workers import a_report
from tests.stores.redis.support import client, open_store
from tests.stores.support import claim, done

pytestmark = pytest.mark.redis

NAMES = ["orders", "a}{b", "{other}", "}", "{", "{}", "%7B", "a b\n", "żółć 🌙", "x:due:0", "*", "[a]", "%"]


@pytest.mark.parametrize("queue", NAMES)
async def test_every_key_and_channel_of_a_queue_is_in_one_slot_whatever_its_name(
    redis_url: str, queue: str
) -> None:
    async with open_store(redis_url, keep_delivered=True) as store, client(redis_url) as own:
        await store.publish(message(queue=queue, timer_id="}{t", ordering_key="}{k", dedup_for=HOUR))
        await store.publish(message(queue=queue, ordering_key="}{k"))
        await store.publish(message(queue=queue, ordering_key="}{k", due=HOUR))
        await store.publish_batch([message(queue=queue, priority=level) for level in range(10)])
        taken = await claim(store, limit=5, queue=queue)
        await done(store, taken[:1])
        await store.settle([Settlement(taken[1], Dead("rejected"))])
        await store.publish(message(queue=queue, timer_id="}{t", on_conflict="replace"))
        await store.pause(queue, ordering_key="}{k", by="ann")
        await store.request_stop(taken[2].id, by="ann")

        keys = [key for key in await own.keys("*") if not key.startswith(b"{nightmail}:")]

        assert len(keys) > 10
        assert {key_slot(key) for key in keys} == {key_slot(store.tag(queue).encode())}
        assert key_slot(Keys("nightmail", 3).channel(queue).encode()) == key_slot(store.tag(queue).encode())
        assert list(await store.stats()) == [queue]


def test_no_two_queues_share_their_keys() -> None:
    keys = Keys("nightmail", 0)

    assert len({keys.tag(name) for name in NAMES}) == len(NAMES)
    assert keys.tag("a}{b") == "{nightmail:a%7D%7Bb}"


async def test_no_key_has_an_end(redis_url: str) -> None:
    async with open_store(redis_url, keep_delivered=True) as store, client(redis_url) as own:
        await store.publish(message(timer_id="t", dedup_for=HOUR, expires_in=HOUR, ordering_key="k"))
        await store.publish_batch([message(), message(due=HOUR)])
        one, two = await claim(store)
        await store.request_stop(two.id, by="ann")
        await store.settle([Settlement(one, Done()), Settlement(two, Dead("rejected"))])
        await store.pause("orders", by="ann", until=HOUR)
        await store.report(a_report())

        assert {await own.ttl(key) for key in await own.keys("*")} == {-1}


async def test_nothing_is_left_of_a_message_that_is_gone(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        for number in range(3):
            await store.publish(message(timer_id=str(number), ordering_key="k"))
        await store.publish(message(timer_id="cancelled", dedup_for=HOUR))
        await store.cancel("orders", "cancelled")
        while deliveries := await claim(store):
            await done(store, deliveries)

        left = {key.decode() for key in await own.keys("*")}

        assert left == {
            "{nightmail}:meta",
            "{nightmail}:queues",
            "{nightmail}:processes",
            "{nightmail:orders}:last",
        }


async def test_what_is_done_is_kept_where_that_is_asked_for(redis_url: str) -> None:
    async with open_store(redis_url, keep_delivered=True) as store, client(redis_url) as own:
        id_ = await store.publish(message(b"kept", headers={"a": 1}, timer_id="t"))
        await done(store, await claim(store))

        (kept,) = await own.zrange("{nightmail:orders}:delivered", 0, -1)
        found = await own.hgetall(b"{nightmail:orders}:v:" + kept)

        assert kept == digits(id_ or 0)
        assert (found[b"body"], found[b"headers"], found[b"timer"]) == (b"kept", b'{"a":1}', b"t")
        assert b"token" not in found
        assert await store.stats() == {}


async def test_stores_with_different_prefixes_do_not_see_each_other(redis_url: str) -> None:
    async with open_store(redis_url) as store, open_store(redis_url, tables="other") as other:
        await store.publish(message(b"ours"))

        assert await claim(other) == []
        assert await other.dead(DeadFilter()) == []
        assert other.tag("orders") == "{other:orders}"


@pytest.mark.parametrize("tables", ["a}b", "schema.prefix", "", "{x}", "UPPER"])
def test_a_prefix_that_cannot_begin_a_key_is_refused(tables: str) -> None:
    with pytest.raises(ValueError, match=r"prefix|name our tables"):
        RedisStore("redis://localhost", tables=tables)


# --------------------------------------------------------------------------------------------- ids


def test_ids_of_one_store_grow_and_those_of_two_never_meet() -> None:
    one, two = Ids(1), Ids(2)

    made = [one.next() for _ in range(1000)]

    assert made == sorted(set(made))
    assert not set(made) & {two.next() for _ in range(1000)}
    assert max(made) < 2**63


async def test_within_a_queue_ids_go_in_the_order_of_the_writes_whatever_the_clocks_say(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(redis_url) as right, open_store(redis_url) as late:
        first = await right.publish(message(b"by a clock that is right"))
        monkeypatch.setattr("nightmail.stores.redis.ids.time.time_ns", lambda: 1_750_000_000_000_000_000)
        second = await late.publish(message(b"by a clock that is a year late"))
        batch = await late.publish_batch([message(), message()])

        assert [pending.id for pending in await late.peek()] == [first, second, *batch]


# ------------------------------------------------------------------------------------------ sources


@pytest.mark.parametrize(
    "url",
    ["http://user:hush@host", "redis", "redis+sentinel://user:hush@host", "redis://user:hush@host:port/0"],
)
def test_what_is_no_redis_url_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError, match="redis://host") as refused:
        RedisStore(url)
    assert "hush" not in str(refused.value)


def test_what_is_neither_a_url_nor_a_client_is_refused() -> None:
    with pytest.raises(TypeError, match="not int"):
        RedisStore(7)  # type: ignore[arg-type]


async def test_a_client_of_any_kind_is_a_source(redis_url: str) -> None:
    async with client(redis_url, decode_responses=True, protocol=3) as own, open_store(own) as store:
        assert await store.publish(message(b"\xff")) is not None
        assert [delivery.body for delivery in await claim(store)] == [b"\xff"]
    cluster = RedisCluster(host="127.0.0.1", port=7000)
    assert RedisStore(cluster)._connector.cluster == [("127.0.0.1", 7000)]
    assert RedisStore("rediss+cluster://host:7001")._connector.cluster == [("host", 7001)]
    assert RedisStore("rediss://host")._connector.cluster is None
    assert RedisStore(Client(host="h", db=7))._connector.database == 7
