"""Dead letters on MySQL among many: who waits for whom, how often the server is asked, and what stays whole."""

from __future__ import annotations

import asyncio

import pytest

from nightmail.outcome import Dead, Done, Outcome, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.testing.conformance.build import AT_ONCE, HOUR, LEASE, QUEUE, claim_letters, message
from tests.stores.mysql.support import connection, execute, open_store, run, watched_store
from tests.stores.shared.dead_letters import LockedDeadLetters, RefusedDeadLetters
from tests.stores.support import EVERYTHING, bury, claim, done, settle

pytestmark = pytest.mark.mysql


class TestLockedDeadLetters(LockedDeadLetters):
    """On this store."""


class TestRefusedDeadLetters(RefusedDeadLetters):
    """On this store."""


# ------------------------------------------------------------------------------------ claim, settle


async def test_a_claim_and_a_settlement_of_letters_ask_the_server_few_times(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await bury(store, *(b"%d" % n for n in range(20)))
        await claim_letters(store, limit=1)
        await store.extend([], LEASE)
        interference.packets.clear()

        letters = await claim_letters(store, limit=19)
        assert len(letters) == 19
        # Find; lock; read as many as fit; lease and commit.
        assert len(interference.packets) == 4

        interference.packets.clear()
        outcomes: list[Outcome] = [Done(), Retry(HOUR), Dead("given up"), Retry()]
        batch = [Settlement(letter, outcomes[n % 4]) for n, letter in enumerate(letters)]
        assert set(await store.settle(batch)) == {WriteResult.WRITTEN}
        assert len(interference.packets) == 1


async def test_letters_of_other_processes_ring_only_where_a_worker_takes_letters(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        with store.listen([QUEUE]) as bell:
            await bury(other, b"no worker takes letters here")
            assert store._opening.now is not None
            await store._opening.now.listener._look()
            assert not await bell.wait(0.5)

            await settle(store, await claim_letters(store), Done())
            await bury(other, b"now one does")
            assert await bell.wait(5)
            assert [letter.body for letter in await claim_letters(store)] == [b"now one does"]


# ------------------------------------------------------------------------------------------ redrive


async def test_a_redrive_asks_the_server_twice_however_many_letters_it_moves(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        letters = await bury(store, *(b"%d" % n for n in range(50)))
        interference.packets.clear()

        ids = await store.redrive(letters[::-1])

        assert len(interference.packets) == 2
        assert ids == sorted(ids)
        moved = sorted(await claim(store, limit=100), key=lambda delivery: delivery.id)
        assert [delivery.body for delivery in moved] == [b"%d" % n for n in range(49, -1, -1)]
        assert await store.dead(EVERYTHING) == []


async def test_a_redriven_message_looks_as_if_it_was_published(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        (letter,) = await bury(store, b"body", timer_id="t", ordering_key="k", priority=3)
        await store.redrive([letter])
        await store.publish(message(b"body", timer_id="other", ordering_key="k", priority=3))
        columns = (
            "priority, superseded, expires_at, lease_until, token, claimed_at, first_attempt_at, last_attempt_at, "
            "last_error, attempts, deliveries, head_key, timer_key = timer_id, queue, ordering_key, queue_head, "
            "queue_timer = concat(queue, x'00', timer_id), due_at = published_at, body"
        )

        redriven, published = await run(mysql_url, f"select {columns} from nightmail_messages order by id")

        assert redriven == published


@pytest.mark.parametrize("commits", [True, False])
async def test_a_redrive_waits_for_who_is_about_to_take_the_name(mysql_url: str, commits: bool) -> None:
    tries_again = asyncio.Event()
    async with watched_store(mysql_url) as (store, interference):

        def stop_at_the_second_try(_: tuple[str, ...]) -> None:
            if sum("begin" in packet for packet in interference.packets) == 2 and not tries_again.is_set():
                interference.gate.clear()
                tries_again.set()

        named, nameless = [*await bury(store, b"named", timer_id="t"), *await bury(store, b"nameless")]
        async with connection(mysql_url) as own:
            await execute(own, "set session transaction isolation level read committed")
            await own.begin()
            await store.publish(message(b"newer", timer_id="t"), transaction=own)
            interference.packets.clear()
            interference.before = stop_at_the_second_try
            redriving = asyncio.create_task(store.redrive([named, nameless]))
            async with asyncio.timeout(30):
                await tries_again.wait()
            assert not redriving.done()
            # Between its tries it has nothing locked: others can lock the letters.
            await execute(own, f"select id from nightmail_dead where id = {named.id} for update nowait")
            await (own.commit() if commits else own.rollback())
            interference.gate.set()
        ids = await redriving

        left = [letter.body for letter in await store.dead(EVERYTHING)]
        there = [delivery.body for delivery in await claim(store)]
        if commits:
            assert (len(ids), left, there) == (1, [b"named"], [b"newer", b"nameless"])
        else:
            assert (len(ids), left, there) == (2, [], [b"named", b"nameless"])


async def test_an_open_redrive_keeps_no_other_from_the_letters_beside_it(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, watched_store(mysql_url) as (other, interference):
        first, second = await bury(store, b"first", b"second")
        (held,) = await claim_letters(store, limit=1)
        beside: list[list[WriteResult]] = []

        async def settle_the_other() -> None:
            beside.append(await done(store, [held]))

        tasks: list[asyncio.Task[None]] = []
        interference.after = lambda sent: (
            tasks.append(asyncio.create_task(settle_the_other())) if "begin" in sent and not tasks else None
        )
        async with asyncio.timeout(5):
            assert len(await other.redrive([first, second])) == 1
            await asyncio.gather(*tasks)

        assert beside == [[WriteResult.WRITTEN]]


# ------------------------------------------------------------------------------------ purge and sweep


async def test_a_sweep_asks_the_server_three_times(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await bury(store, *(b"%d" % n for n in range(30)))
        interference.packets.clear()

        assert (await store.sweep(older_than=AT_ONCE, limit=25)).dead == 25

        assert len(interference.packets) == 3
        assert [letter.body for letter in await store.dead(EVERYTHING)] == [
            b"%d" % n for n in range(29, 24, -1)
        ]
