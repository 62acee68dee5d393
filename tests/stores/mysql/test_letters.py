"""Dead letters on MySQL among many: who waits for whom, how often the server is asked, and what stays whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from nightmail.message import DeadDelivery, Delivery
from nightmail.outcome import Dead, Done, Outcome, Retry, WriteResult
from nightmail.records import DeadFilter, DeadLetter, Swept
from nightmail.store import Settlement
from nightmail.stores.mysql import MySQLStore
from nightmail.stores.mysql.errors import LOCK_TIMEOUT, LOCKED_NOW, number_of
from tests.stores.mysql.support import (
    HOUR,
    LEASE,
    QUEUE,
    claim,
    connection,
    done,
    execute,
    message,
    open_store,
    raw_connection,
    run,
    watched_store,
)

pytestmark = pytest.mark.mysql

EVERYTHING = DeadFilter()
NOTHING = timedelta(0)


async def bury(store: MySQLStore, *bodies: bytes, **options: Any) -> list[DeadLetter]:
    """Let messages with these bodies die, in this order; the letters."""
    for body in bodies:
        await store.publish(message(body, **options))
        await settle(store, await claim(store), Dead("rejected"))
    return (await store.dead(EVERYTHING))[: len(bodies)][::-1]


async def settle(store: MySQLStore, deliveries: list[Delivery], outcome: Outcome) -> None:
    results = await store.settle([Settlement(delivery, outcome) for delivery in deliveries])
    assert set(results) <= {WriteResult.WRITTEN}


async def take(store: MySQLStore, *, limit: int = 10, lease: timedelta = LEASE) -> list[Delivery]:
    claimed = await store.claim_dead([QUEUE], limit=limit, lease=lease, token=uuid4())
    return list(claimed.deliveries)


@asynccontextmanager
async def locked(url: str, *letters: DeadLetter) -> AsyncIterator[Any]:
    """Somebody's open transaction that has locked these letters."""
    async with raw_connection(url) as own:
        ids = ", ".join(str(letter.id) for letter in letters)
        await execute(
            own, f"select id from nightmail_dead force index (primary) where id in ({ids}) for update"
        )
        yield own


# ------------------------------------------------------------------------------------ claim, settle


async def test_a_claim_of_letters_passes_over_many_that_others_have_locked(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        letters = await bury(store, *(b"%d" % n for n in range(40)))
        async with locked(mysql_url, *letters[:30]), asyncio.timeout(5):
            two = await take(store, limit=2)
            rest = await take(store, limit=100)

        assert [letter.body for letter in two] == [b"30", b"31"]
        assert [letter.body for letter in rest] == [b"%d" % n for n in range(32, 40)]


async def test_claims_at_the_same_time_never_give_a_letter_twice(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        await bury(store, *(b"%d" % n for n in range(30)))

        async def take_all(who: MySQLStore) -> list[int]:
            ids: list[int] = []
            while taken := await take(who, limit=3):
                ids += [letter.id for letter in taken]
            return ids

        one, two = await asyncio.gather(take_all(store), take_all(other))

        assert len(one + two) == 30
        assert len({*one, *two}) == 30


async def test_a_claim_and_a_settlement_of_letters_ask_the_server_few_times(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await bury(store, *(b"%d" % n for n in range(20)))
        await take(store, limit=1)
        await store.extend([], LEASE)
        interference.packets.clear()

        letters = await take(store, limit=19)
        assert len(letters) == 19
        # Find; lock; read as many as fit; lease and commit.
        assert len(interference.packets) == 4

        interference.packets.clear()
        outcomes: list[Outcome] = [Done(), Retry(HOUR), Dead("given up"), Retry()]
        batch = [Settlement(letter, outcomes[n % 4]) for n, letter in enumerate(letters)]
        assert set(await store.settle(batch)) == {WriteResult.WRITTEN}
        assert len(interference.packets) == 1


async def test_one_letter_that_the_server_refuses_does_not_fail_its_neighbours(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await bury(store, b"good", b"bad")
        await run(
            mysql_url,
            "create trigger refuses before delete on nightmail_dead for each row "
            "begin if old.body = 'bad' then signal sqlstate '45000'; end if; end",
        )

        results = await store.settle([Settlement(letter, Done()) for letter in await take(store)])

        assert results == [WriteResult.WRITTEN, WriteResult.BUSY]


async def test_a_publish_of_somebody_who_looks_after_a_letter_is_fenced_by_its_lease(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await bury(store, b"dead", timer_id="t")
        (lost,) = await take(store, lease=NOTHING)
        (held,) = await take(store)
        assert isinstance(held, DeadDelivery)

        assert await store.publish(message(b"once more", timer_id="t"), own=held) is not None
        with pytest.raises(Exception, match="lease"):
            await store.publish(message(b"too late"), own=lost)

        assert [delivery.body for delivery in await claim(store)] == [b"once more"]


async def test_letters_of_other_processes_ring_only_where_somebody_takes_letters(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        with store.listen([QUEUE]) as bell:
            await bury(other, b"nobody looks after them here")
            assert store._opening.now is not None
            await store._opening.now.wakeups._look()
            assert not await bell.wait(0.5)

            await settle(store, await take(store), Done())
            await bury(other, b"now somebody does")
            assert await bell.wait(5)
            assert [letter.body for letter in await take(store)] == [b"now somebody does"]


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
            "attempts, deliveries, head_key, timer_key = timer_id, queue, ordering_key, queue_head, "
            "queue_timer = concat(queue, x'00', timer_id), due_at = published_at, body"
        )

        redriven, published = await run(mysql_url, f"select {columns} from nightmail_messages order by id")

        assert redriven == published


async def test_two_redrives_of_the_same_letters_move_each_once(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        letters = await bury(store, *(b"%d" % n for n in range(20)))

        one, two = await asyncio.gather(store.redrive(letters), other.redrive(letters[::-1]))

        assert len(one) + len(two) == 20
        assert len(await claim(store, limit=100)) == 20
        assert await store.dead(EVERYTHING) == []


async def test_a_redrive_passes_over_a_letter_that_somebody_has_locked(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        first, second, third = await bury(store, b"first", b"second", b"third")
        async with locked(mysql_url, second), asyncio.timeout(5):
            assert len(await store.redrive([first, second, third])) == 2

        assert [letter.body for letter in await store.dead(EVERYTHING)] == [b"second"]
        assert [delivery.body for delivery in await claim(store)] == [b"first", b"third"]


async def locked_in_between(own: Any, letter: DeadLetter) -> None:
    """Lock this letter, as soon as it is not locked. Never wait for it: that could be a deadlock."""
    async with asyncio.timeout(30):
        while True:
            try:
                await execute(own, f"select id from nightmail_dead where id = {letter.id} for update nowait")
            except Exception as error:
                if number_of(error) not in (LOCK_TIMEOUT, LOCKED_NOW):
                    raise
                await asyncio.sleep(0.01)
            else:
                return


@pytest.mark.parametrize("commits", [True, False])
async def test_a_redrive_waits_for_who_is_about_to_take_the_name(mysql_url: str, commits: bool) -> None:
    async with watched_store(mysql_url) as (store, interference):
        named, nameless = [*await bury(store, b"named", timer_id="t"), *await bury(store, b"nameless")]
        async with connection(mysql_url) as own:
            await execute(own, "set session transaction isolation level read committed")
            await own.begin()
            await store.publish(message(b"newer", timer_id="t"), transaction=own)
            interference.packets.clear()
            redriving = asyncio.create_task(store.redrive([named, nameless]))
            # It has tried, and tries again.
            async with asyncio.timeout(30):
                while sum("begin" in packet for packet in interference.packets) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not redriving.done()
            # Between its tries it has nothing locked: whoever wants the letters gets them.
            await locked_in_between(own, named)
            await (own.commit() if commits else own.rollback())
        ids = await redriving

        left = [letter.body for letter in await store.dead(EVERYTHING)]
        there = [delivery.body for delivery in await claim(store)]
        if commits:
            assert (len(ids), left, there) == (1, [b"named"], [b"newer", b"nameless"])
        else:
            assert (len(ids), left, there) == (2, [], [b"named", b"nameless"])


async def test_names_that_are_published_and_redriven_at_the_same_time_are_each_borne_once(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        names = [f"t{n}" for n in range(20)]
        for name in names:
            await bury(store, name.encode(), timer_id=name)
        letters = (await store.dead(EVERYTHING))[::-1]

        async def publish() -> int:
            stored = [await other.publish(message(b"newer", timer_id=name)) for name in names[::-1]]
            return sum(id_ is not None for id_ in stored)

        moved, published = await asyncio.gather(store.redrive(letters), publish())

        assert len(moved) + published == 20
        assert len(await store.dead(EVERYTHING)) == 20 - len(moved)
        assert len(await claim(store, limit=100)) == 20


async def test_a_redrive_that_the_server_refuses_moves_nothing(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        letters = await bury(store, b"good", b"bad", b"fine")
        await run(
            mysql_url,
            "create trigger refuses before insert on nightmail_messages for each row "
            "begin if new.body = 'bad' then signal sqlstate '45000'; end if; end",
        )
        with pytest.raises(Exception, match="1644"):
            await store.redrive(letters)

        assert await store.dead(EVERYTHING) == letters[::-1]
        assert await claim(store) == []


async def test_an_open_redrive_keeps_nobody_from_the_letters_beside_it(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, watched_store(mysql_url) as (other, interference):
        first, second = await bury(store, b"first", b"second")
        (held,) = await take(store, limit=1)
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


async def test_a_purge_and_a_sweep_pass_over_what_somebody_has_locked(mysql_url: str) -> None:
    async with open_store(mysql_url, keep_delivered=True) as store:
        first, *_ = await bury(store, b"first", b"second", b"third", b"fourth")
        await store.publish(message(timer_id="t", dedup_for=timedelta(microseconds=1)))
        await store.publish(message(timer_id="u", dedup_for=timedelta(microseconds=1)))
        await done(store, await claim(store))
        async with locked(mysql_url, first) as own, asyncio.timeout(5):
            await execute(own, "select * from nightmail_delivered order by id limit 1 for update")
            await execute(
                own, f"select * from nightmail_dedup where queue = '{QUEUE}' and timer_id = 't' for update"
            )

            assert await store.purge(EVERYTHING, limit=2) == 1
            assert await store.sweep(older_than=NOTHING, limit=10) == Swept(delivered=1, dead=2, dedup=1)

        assert await store.dead(EVERYTHING) == [first]
        assert await store.sweep(older_than=NOTHING, limit=10) == Swept(delivered=1, dead=1, dedup=1)


async def test_sweeps_at_the_same_time_count_each_row_once(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        await bury(store, *(b"%d" % n for n in range(30)))

        swept = await asyncio.gather(
            *(each.sweep(older_than=NOTHING, limit=20) for each in (store, other, store, other))
        )

        assert sum(each.dead for each in swept) == 30
        assert await store.dead(EVERYTHING) == []


async def test_a_sweep_asks_the_server_three_times(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await bury(store, *(b"%d" % n for n in range(30)))
        interference.packets.clear()

        assert (await store.sweep(older_than=NOTHING, limit=25)).dead == 25

        assert len(interference.packets) == 3
        assert [letter.body for letter in await store.dead(EVERYTHING)] == [
            b"%d" % n for n in range(29, 24, -1)
        ]


async def test_a_window_that_is_opened_anew_while_it_is_swept_stays(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message(timer_id="t", dedup_for=timedelta(microseconds=1)))
        await done(store, await claim(store))
        async with raw_connection(mysql_url) as own:
            await store.publish(message(timer_id="t", dedup_for=HOUR), transaction=own)
            assert (await store.sweep(older_than=NOTHING, limit=10)).dedup == 0

        await done(store, await claim(store))
        assert (await store.sweep(older_than=NOTHING, limit=10)).dedup == 0
        assert await store.publish(message(timer_id="t")) is None
