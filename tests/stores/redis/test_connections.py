"""How many connections there are, how often the server is asked, and what a claim costs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
import redis.utils
from redis.asyncio import Redis
from redis.asyncio.retry import Retry as Retries
from redis.backoff import NoBackoff

from nightmail.errors import SchemaDrift, StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Retry, WriteResult
from nightmail.store import Claimed, Extend, Settlement
from nightmail.stores.redis import RedisStore
from nightmail.stores.redis.link import Link
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, message
from tests.stores.redis.support import client, open_store
from tests.stores.shared.connections import Connections
from tests.stores.shared.event_loops import OneEventLoop
from tests.stores.shared.keeper import KeeperThread
from tests.stores.support import claim, done, until

pytestmark = pytest.mark.redis


class TestConnections(Connections):
    """On this store."""


class TestKeeperThread(KeeperThread):
    """On this store."""


class TestEventLoops(OneEventLoop):
    """On this store."""


MANY = 1000


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent: the first command of each flight. Cleared by the test."""
    sent: list[str] = []
    ask = Link.ask

    async def noted(link: Link, *commands: Sequence[Any]) -> list[Any]:
        sent.append(str(commands[0][0]))
        return await ask(link, *commands)

    monkeypatch.setattr(Link, "ask", noted)
    return sent


async def ours(own: Any) -> list[str]:
    """The names of the connections that stores have."""
    return sorted(found["name"] for found in await own.client_list() if found["name"].startswith("nightmail"))


# -------------------------------------------------------------------------------------- connections


async def test_a_store_needs_five_connections_at_most_and_gives_them_all_back(redis_url: str) -> None:
    async with client(redis_url) as own:
        async with open_store(redis_url) as store:
            await store.publish_batch([message() for _ in range(20)])
            with store.listen([QUEUE]), store.listen(["other"]):
                async with store.run_on_keeper_thread(lambda extend: asyncio.sleep(0)):
                    await asyncio.gather(
                        *(store.publish(message(timer_id=str(number))) for number in range(10)),
                        *(claim(store, limit=1) for _ in range(10)),
                        *(store.stats() for _ in range(3)),
                    )
                    deliveries = await claim(store, limit=5)
                    await done(store, deliveries)
                    await until(lambda: store.listening)

                    assert await ours(own) == [
                        "nightmail-claim",
                        "nightmail-listen",
                        "nightmail-publish",
                        "nightmail-settle",
                    ]
            held = await claim(store, limit=1)
            renewed = asyncio.Event()
            loop = asyncio.get_running_loop()

            async def keep(extend: Extend) -> None:
                assert await extend(held, LEASE) == [WriteResult.WRITTEN]
                loop.call_soon_threadsafe(renewed.set)
                await asyncio.Event().wait()

            async with store.run_on_keeper_thread(keep):
                await renewed.wait()
                assert "nightmail-keeper" in await ours(own)
                assert len(await ours(own)) <= store.capabilities.connections
            await until(lambda: _without(own, "nightmail-keeper"))

        async def none_left() -> bool:
            return await ours(own) == []

        await until(none_left)


async def _without(own: Any, name: str) -> bool:
    return name not in await ours(own)


# ---------------------------------------------------------------------------------------- round trips


async def test_a_connection_reads_no_file_to_say_which_library_it_is(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(redis_url) as store:
        await store.publish(message())  # What is read once in a process has been read.
    looked_up = Mock(return_value="0")
    monkeypatch.setattr(redis.utils, "get_lib_version", looked_up)

    async with open_store(redis_url) as store:
        await store.publish(message())
        await claim(store)

    looked_up.assert_not_called()


async def test_a_thousand_messages_are_published_claimed_extended_and_settled_in_one_round_trip_each(
    redis_url: str, round_trips: list[str]
) -> None:
    async with open_store(redis_url) as store:
        await store.publish_batch([message()])
        await done(store, await claim(store))
        await store.extend(await claim(store), LEASE)
        await store.recall([QUEUE], uuid4())
        await store.publish_batch([message()])
        warm = await claim(store)
        await store.extend(warm, LEASE)
        await done(store, warm)
        round_trips.clear()

        await store.publish_batch([message(b"x" * 100, headers={"a": "b"}) for _ in range(MANY)])
        deliveries = await claim(store, limit=MANY)
        await store.extend(deliveries, LEASE)
        outcomes: list[Outcome] = [Done(), Retry(HOUR), Dead("rejected", "no")]
        results = await store.settle(
            [Settlement(delivery, outcomes[at % 3]) for at, delivery in enumerate(deliveries)]
        )

        assert results == [WriteResult.WRITTEN] * MANY
        assert round_trips == ["EVALSHA"] * 4
        assert len(round_trips) / MANY <= 0.05


async def test_several_queues_of_one_server_are_one_round_trip(
    redis_url: str, round_trips: list[str]
) -> None:
    queues = [f"queue {number}" for number in range(20)]
    async with open_store(redis_url) as store:
        await store.publish_batch([message(queue=queue) for queue in queues])
        await store.claim(["warm"], limit=1, lease=LEASE, token=uuid4())
        round_trips.clear()

        claimed = await store.claim(queues, limit=100, lease=LEASE, token=uuid4())
        assert await store.settle([Settlement(delivery, Done()) for delivery in claimed.deliveries])

        assert len(claimed.deliveries) == 20
        assert len(round_trips) <= 3  # One more for a script that this server has not seen yet.


async def test_what_is_published_at_the_same_time_goes_together(
    redis_url: str, round_trips: list[str]
) -> None:
    async with open_store(redis_url) as store:
        await store.publish(message())
        round_trips.clear()

        ids = await asyncio.gather(*(store.publish(message(b"%d" % number)) for number in range(200)))

        assert len(set(ids)) == 200
        assert len(round_trips) <= 3
        assert [pending.id for pending in await store.peek(limit=300)][1:] == ids


@asynccontextmanager
async def commands_of(own: Any) -> AsyncIterator[dict[str, int]]:
    """How often the server carries out each command within the block."""
    counted: dict[str, int] = {}
    await own.config_resetstat()
    yield counted
    stats = await own.info("commandstats")
    counted.update({name.removeprefix("cmdstat_"): facts["calls"] for name, facts in stats.items()})


async def test_a_claim_and_a_settlement_cost_the_server_few_commands_for_each_message(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish_batch([message() for _ in range(MANY)])

        async with commands_of(own) as counted:
            deliveries = await claim(store, limit=MANY)
        assert sum(counted.values()) / MANY < 2.1

        async with commands_of(own) as counted:
            await done(store, deliveries)
        assert sum(counted.values()) / MANY < 1.1


async def test_a_claim_costs_the_same_whatever_lies_in_the_future(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:

        async def cost() -> dict[str, int]:
            await store.publish_batch([message() for _ in range(10)])
            async with commands_of(own) as counted:
                assert len(await claim(store, limit=10)) == 10
                assert len(await claim(store, limit=10)) == 0
            # Not how often it was asked, which depends on whether it knows the script.
            return {name: calls for name, calls in counted.items() if name.startswith(("z", "h"))}

        await store.publish(message(due=HOUR))
        await cost()
        with_one = await cost()
        for _ in range(4):
            await store.publish_batch([message(due=HOUR * (1 + number)) for number in range(5000)])

        assert await cost() == with_one


async def test_nothing_is_asked_while_nothing_happens(redis_url: str, round_trips: list[str]) -> None:
    async with open_store(redis_url) as store:
        with store.listen([QUEUE]) as bell:
            await until(lambda: store.listening)
            round_trips.clear()
            bell.clear()

            assert not await bell.wait(0.5)

            assert round_trips == []


# --------------------------------------------------------------------------------------------- listening


async def test_a_queue_that_has_no_listener_any_more_is_unsubscribed(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:

        async def channels() -> int:
            return len(await own.pubsub_channels("{nightmail:*"))

        async def is_two() -> bool:
            return await channels() == 2

        async def is_one() -> bool:
            return await channels() == 1

        with store.listen([QUEUE]) as kept:
            with store.listen([QUEUE, "other"]):
                await until(is_two)
            await until(is_one)
            await until(lambda: store.listening)
            kept.clear()
            await store.publish(message())
            assert await kept.wait(5)


async def test_a_lost_listening_connection_is_replaced_and_rings_without_a_warning(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        with store.listen([QUEUE]) as bell, caplog.at_level(logging.WARNING):
            await until(lambda: store.listening)
            bell.clear()
            await own.client_kill_filter(_type="pubsub")

            assert await bell.wait(10)
            await until(lambda: store.listening)
        assert "no wake-ups" not in caplog.text


async def test_the_same_prefix_in_another_database_rings_no_bell_here(redis_url: str) -> None:
    elsewhere = redis_url.rpartition("/")[0] + "/40"
    async with open_store(redis_url) as store, open_store(elsewhere) as other, client(elsewhere) as own:
        with store.listen([QUEUE]) as bell, other.listen([QUEUE]) as theirs:
            await until(lambda: store.listening and other.listening)
            bell.clear()
            theirs.clear()
            await other.publish(message())

            assert await theirs.wait(5)
            assert not await bell.wait(0.1)
        await own.flushdb()


# ---------------------------------------------------------------------------------------------- size


async def test_a_message_of_megabytes_comes_back_as_it_was(redis_url: str) -> None:
    body = bytes(range(256)) * 4096 * 4
    async with open_store(redis_url) as store:
        await store.publish(message(body))

        assert [delivery.body for delivery in await claim(store)] == [body]


async def test_a_claim_of_thousands_is_one_claim(redis_url: str) -> None:
    async with open_store(redis_url) as store:
        for _ in range(3):
            await store.publish_batch([message(ordering_key=str(number)) for number in range(1500)])

        taken: list[Delivery] = await claim(store, limit=5000)

        assert len(taken) == 1500
        assert await done(store, taken) == [WriteResult.WRITTEN] * 1500
        assert len(await claim(store, limit=5000)) == 1500


async def test_everything_waiting_is_cancelled_however_much_it_is(redis_url: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("nightmail.stores.redis.timers.AT_ONCE", 70)
    async with open_store(redis_url) as store:
        await store.publish_batch([message(b"running")])
        running = await claim(store)
        await store.publish_batch(
            [message(due=HOUR * (number % 2), priority=number % 10) for number in range(300)]
        )
        await store.publish_batch([message(ordering_key=str(number % 7)) for number in range(200)])

        assert await store.cancel_all(QUEUE) == 500

        assert await done(store, running) == [WriteResult.WRITTEN]
        assert await store.stats() == {}


async def test_expired_leases_by_the_thousand_are_all_found(redis_url: str) -> None:
    async with open_store(redis_url) as store:
        for _ in range(3):
            await store.publish_batch([message() for _ in range(1000)])
        claimed = await store.claim([QUEUE], limit=3000, lease=timedelta(microseconds=1), token=uuid4())
        assert len(claimed.deliveries) == 3000

        found = 0
        portions: list[Claimed] = []
        while not portions or portions[-1].full:
            portions.append(await store.claim([QUEUE], limit=5000, lease=LEASE, token=uuid4()))
            found += len(portions[-1].deliveries)

        assert found == 3000
        # One portion for each call, and only the last says that this was all.
        assert [len(each.deliveries) for each in portions] == [1000, 1000, 1000]


# ------------------------------------------------------------------------------------------- together


async def test_a_message_that_is_refused_fails_none_of_those_it_went_with(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await own.set("{nightmail:orders}:due:5", "not ours")
        priorities = [0, 5, 0, 9]

        results = await asyncio.gather(
            *(store.publish(message(b"%d" % level, priority=level)) for level in priorities),
            return_exceptions=True,
        )

        assert [isinstance(result, SchemaDrift) for result in results] == [False, True, False, False]
        await own.delete("{nightmail:orders}:due:5")
        assert [delivery.body for delivery in await claim(store)] == [b"9", b"0", b"0"]


async def test_a_publish_cancelled_before_its_turn_is_not_stored(redis_url: str) -> None:
    async with open_store(redis_url) as store:
        await store.ping()
        first = asyncio.ensure_future(store.publish(message(b"first")))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(store.publish(message(b"second")))
        third = asyncio.ensure_future(store.publish(message(b"third")))
        await asyncio.sleep(0)
        second.cancel()

        await asyncio.gather(first, third)

        assert b"second" not in [pending.body for pending in await store.peek()]
        assert len(await store.peek()) == 2


# ------------------------------------------------------------------------------------------ no retries


async def test_the_driver_tries_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0

    async def refused(*_: Any, **__: Any) -> Any:
        nonlocal tried
        tried += 1
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", refused)
    store = RedisStore("redis://127.0.0.1:1/0")
    await store.open()
    # Of a client, too, that is set to try three times.
    other = RedisStore(Redis(retry=Retries(NoBackoff(), 3)))
    await other.open()
    for each in (store, other):
        tried = 0
        with pytest.raises(StoreUnavailable):
            await each.ping()
        assert tried == 1
        await each.close()
