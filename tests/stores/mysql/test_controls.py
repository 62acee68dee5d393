"""What pauses and the questions of operators cost, and what several processes make of one pause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import uuid4

import pytest

from nightmail.outcome import Done, Retry, WriteResult
from nightmail.store import Claimed
from nightmail.stores.mysql import MySQLStore
from nightmail.stores.mysql.lane import Lane
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import AT_ONCE, HOUR, LEASE, MINUTE, QUEUE, SECOND, bodies, message
from tests.plans.test_mysql_plans import rows_touched
from tests.stores.mysql.support import connection, execute, open_store, run
from tests.stores.support import claim, done, settle

pytestmark = pytest.mark.mysql

T = TypeVar("T")

MANY = 50_000
KEYS = 200
OTHER = "other"
FILL = """
    insert into nightmail_messages (queue, priority, due_at, published_at, headers, body, ordering_key)
    select '{queue}', seq % 10, utc_timestamp(6) - interval 1 hour + interval seq microsecond, utc_timestamp(6),
           '{{}}', 'waits', {key}
    from seq_1_to_{count}
"""
A_PAUSE_OF_EACH_KEY = f"""
    insert into nightmail_controls (queue, ordering_key, since, until, paused_by)
    select '{QUEUE}', concat('key ', seq), utc_timestamp(6), utc_timestamp(6) + interval 1 day, 'ann'
    from seq_0_to_{KEYS - 1}
"""


async def fill(url: str, queue: str, *, keys: int = 0, count: int = MANY) -> None:
    """So many due messages, of all priorities, each with one of these ordering keys if there are any."""
    key = f"concat('key ', seq % {keys})" if keys else "null"
    await run(url, FILL.format(queue=queue, key=key, count=count))


async def look(store: MySQLStore, *queues: str, limit: int = 10) -> Claimed:
    return await store.claim(queues or (QUEUE,), limit=limit, lease=LEASE, token=uuid4())


async def touched(lane: Lane, work: Callable[[], Awaitable[T]]) -> tuple[T, int]:
    """What this gives, and how many rows the server read for it on this connection."""
    before = await lane.run(rows_touched)
    found = await work()
    return found, await lane.run(rows_touched) - before


def claim_lane(store: MySQLStore) -> Lane:
    assert store._opening.now is not None
    return store._opening.now.claim_lane


def publish_lane(store: MySQLStore) -> Lane:
    assert store._opening.now is not None
    return store._opening.now.publish_lane


# ------------------------------------------------------------------------------------- what it costs


async def test_a_claim_beside_a_paused_queue_does_not_read_what_is_due_there(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await fill(mysql_url, QUEUE)
        await store.pause(QUEUE, by="ann")
        await store.publish_batch([message(b"%d" % n, queue=OTHER) for n in range(30)])

        for first in (0, 10, 20):
            claimed, read = await touched(claim_lane(store), lambda: look(store, QUEUE, OTHER))
            assert bodies(claimed.deliveries) == [b"%d" % n for n in range(first, first + 10)]
            # The first one finds out that there is a pause only when it looks.
            assert read < 300 if first == 0 else read < 120
        nothing, read = await touched(claim_lane(store), lambda: look(store, QUEUE))
        assert not nothing.deliveries
        assert read < 10


async def test_a_claim_beside_paused_keys_reads_a_few_rows_of_each_and_not_their_backlogs(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await fill(mysql_url, QUEUE, keys=KEYS)
        await run(mysql_url, A_PAUSE_OF_EACH_KEY)
        await store.publish_batch([message(b"free"), message(b"free", ordering_key="free")])

        # What is paused is walked over once, a portion at a time, and parked.
        taken: list[bytes] = []
        reads: list[int] = []
        for _ in range(40):
            claimed, read = await touched(claim_lane(store), lambda: look(store))
            taken += bodies(claimed.deliveries)
            reads.append(read)
            if not claimed.full:
                break
        assert taken == [b"free", b"free"]
        assert max(reads) < 100_000

        await store.publish(message(b"late"))
        claimed, read = await touched(claim_lane(store), lambda: look(store))
        assert (bodies(claimed.deliveries), claimed.full) == ([b"late"], False)
        assert read < KEYS * 10

        # None of them is forgotten.
        await run(mysql_url, "delete from nightmail_controls")
        claimed = await look(store, limit=KEYS)
        assert {delivery.ordering_key for delivery in claimed.deliveries} == {f"key {n}" for n in range(KEYS)}


async def test_once_a_pause_is_over_claims_cost_what_they_did(mysql_url: str) -> None:
    async with open_store(mysql_url, clock=(clock := ManualClock())) as store:
        _, before = await touched(claim_lane(store), lambda: look(store))
        await store.pause(QUEUE, by="ann", until=MINUTE)
        await store.pause(QUEUE, ordering_key="a", by="ann", until=MINUTE)
        assert (await look(store)).next_in == MINUTE
        clock.advance(MINUTE)

        await look(store)

        assert await run(mysql_url, "select count(*) from nightmail_controls") == [(0,)]
        _, after = await touched(claim_lane(store), lambda: look(store))
        assert after <= before


async def test_who_runs_and_why_not_is_told_without_reading_what_waits(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await fill(mysql_url, QUEUE)
        await fill(mysql_url, OTHER)
        running = await claim(store)
        lane = publish_lane(store)

        leases, read = await touched(lane, store.leases)
        assert {each.id for each in leases} == {delivery.id for delivery in running}
        assert read < 100

        ((last,),) = await run(mysql_url, f"select max(id) from nightmail_messages where queue = '{OTHER}'")
        facts, read = await touched(lane, lambda: store.facts(last))
        assert (facts.ahead, facts.locked) == (1000, False)
        assert read < 20_000
        # MariaDB reads its own statistics of a table that is opened for the first time.
        await store.facts(last + 1)
        gone, read = await touched(lane, lambda: store.facts(last + 1))
        assert gone.message is None
        assert read < 10


# ------------------------------------------------------------------------------- several processes


async def test_of_several_processes_one_takes_the_probe(mysql_url: str) -> None:
    clock = ManualClock()
    async with (
        open_store(mysql_url, clock=clock) as one,
        open_store(mysql_url, clock=clock) as two,
        open_store(mysql_url, clock=clock) as three,
    ):
        stores = (one, two, three)
        for _ in range(10):
            await one.publish_batch([message(b"%d" % n) for n in range(5)])
            await one.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
            clock.advance(MINUTE)

            claims = await asyncio.gather(*(look(store) for store in stores))

            assert sorted((len(each.deliveries), each.probe) for each in claims) == [
                (0, False),
                (0, False),
                (1, True),
            ]
            assert {each.next_in for each in claims if not each.probe} == {MINUTE}
            await one.resume(QUEUE, automatic=True)
            (probe,) = [each for each in claims if each.probe]
            await done(one, [*probe.deliveries, *await claim(one)])


async def test_a_probe_that_finds_its_message_locked_leaves_the_pause_as_it_was(mysql_url: str) -> None:
    async with open_store(mysql_url, clock=(clock := ManualClock())) as store, connection(mysql_url) as own:
        await store.publish(message(b"locked"))
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        until = clock.now() + MINUTE
        clock.advance(HOUR)
        await own.begin()
        await execute(own, "select id from nightmail_messages for update")

        nothing = await look(store)
        (pause,) = await store.pauses()
        await own.rollback()
        probe = await look(store)

        assert (nothing.deliveries, nothing.probe, pause.until) == ([], False, until)
        assert (bodies(probe.deliveries), probe.probe) == ([b"locked"], True)


async def test_many_queues_with_pauses_among_them_are_claimed_from(mysql_url: str) -> None:
    async with open_store(mysql_url, clock=(clock := ManualClock())) as store:
        queues = [f"queue {n}" for n in range(12)]
        await store.publish_batch([message(queue.encode(), queue=queue) for queue in queues])
        await store.publish(message(b"later", queue=queues[1], due=SECOND))
        await store.publish(message(b"later", queue=queues[3], due=HOUR))
        await store.pause(queues[0], by="ann")
        await store.pause(queues[1], by="ann", until=2 * MINUTE)
        await store.pause(queues[2], by="worker", until=MINUTE, automatic=True)

        claimed = await look(store, *queues, limit=100)
        assert sorted(bodies(claimed.deliveries)) == sorted(queue.encode() for queue in queues[3:])
        await done(store, claimed.deliveries)
        assert (await look(store, *queues, limit=100)).next_in == MINUTE
        clock.advance(MINUTE)

        probe = await look(store, *queues, limit=100)
        assert (bodies(probe.deliveries), probe.probe) == ([queues[2].encode()], True)
        clock.advance(MINUTE)
        rest = await look(store, queues[0], *queues[3:], queues[1], limit=100)
        assert sorted(bodies(rest.deliveries)) == [b"later", queues[1].encode()]


async def test_a_paused_queue_is_not_rung_for_what_waits_in_it_until_it_is_resumed(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        await other.pause(QUEUE, by="ann")
        await other.pause(OTHER, ordering_key="a", by="ann")
        await other.publish(message())
        await other.publish(message(queue=OTHER, ordering_key="a"))
        assert not (await look(store, QUEUE, OTHER)).deliveries
        assert store._opening.now is not None
        poller = store._opening.now.listener

        with store.listen([QUEUE, OTHER]):
            await poller._look()
            assert not poller._rung
            await other.resume(QUEUE)
            await other.resume(OTHER, ordering_key="a")
            await poller._look()
            assert {each.queue for each in poller._rung} == {QUEUE, OTHER}


# ---------------------------------------------------------------------------------------- stopping


async def test_a_holder_is_told_to_stop_though_another_of_its_messages_is_locked(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        await store.publish_batch([message(), message()])
        stopped, locked = await claim(store)
        await store.request_stop(stopped.id, by="ann")
        await own.begin()
        await execute(own, f"select id from nightmail_messages where id = {locked.id} for update")

        assert await store.extend([stopped, locked], LEASE) == [WriteResult.STOP, WriteResult.BUSY]
        await own.rollback()


async def test_a_paused_key_whose_first_is_to_be_retried_goes_on_with_that_one(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await store.publish_batch([message(b"%d" % n, ordering_key="a") for n in range(30)])
        first = await claim(store)
        await store.pause(QUEUE, ordering_key="a", by="ann")
        await settle(store, first, Retry(AT_ONCE))
        for _ in range(3):
            assert await claim(store) == []
        await store.resume(QUEUE, ordering_key="a")

        taken: list[bytes] = []
        for _ in range(30):
            claimed = await claim(store)
            taken += bodies(claimed)
            await settle(store, claimed, Done())
        assert taken == [b"%d" % n for n in range(30)]
