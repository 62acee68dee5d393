"""A transaction that is rolled back in the middle of a packet, as a Galera cluster does when another node was quicker.

The server then goes on: the next statement of the packet is carried out by itself, and committed, and only after that
it says 1213. On a cluster this is a matter of microseconds; here it is done to a single server, at every place of a
packet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import pytest
from asyncmy.errors import MySQLError, OperationalError

from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Retry, WriteResult
from nightmail.records import DeadFilter, DeadLetter, Swept
from nightmail.store import Settlement
from nightmail.stores.mysql import MySQLStore
from nightmail.stores.mysql.link import Link
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, message
from tests.stores.mysql.support import open_store, run
from tests.stores.support import claim

pytestmark = pytest.mark.mysql

EVERYTHING: Final = DeadFilter()
DEADLOCK: Final = 1213
PLACES: Final = range(1, 7)
"""After so many statements of the packet that ends the transaction. What was rolled back before it fails as a whole."""


async def nothing() -> None:
    """What happens between the rollback and the next statement."""


@asynccontextmanager
async def aborted_after(
    place: int, *, meanwhile: Callable[[], Awaitable[object]] = nothing
) -> AsyncIterator[None]:
    """Do so to the first packet that ends with a commit, after so many of its statements, if there are as many."""
    ask = Link.ask
    left = [place]

    async def asked(link: Link, *statements: str) -> list[Any]:
        if not left or statements[-1] != "commit" or len(statements) <= place:
            return await ask(link, *statements)
        left.clear()
        await ask(link, *statements[:place], "rollback")
        await meanwhile()
        with suppress(MySQLError):
            await ask(link, statements[place])
        raise OperationalError(DEADLOCK, "Deadlock found when trying to get lock; try restarting transaction")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "ask", asked)
        yield


async def settled(store: MySQLStore, deliveries: list[Delivery], *outcomes: Outcome) -> list[WriteResult]:
    return await store.settle(
        [Settlement(delivery, outcome) for delivery, outcome in zip(deliveries, outcomes, strict=True)]
    )


async def bury(store: MySQLStore, *bodies: bytes) -> list[DeadLetter]:
    """Let messages with these bodies die; the letters, in this order."""
    await store.publish_batch([message(body) for body in bodies])
    assert set(await settled(store, await claim(store), *(Dead("rejected") for _ in bodies))) == {
        WriteResult.WRITTEN
    }
    return (await store.dead(EVERYTHING))[::-1]


async def take(store: MySQLStore) -> list[Delivery]:
    return list((await store.claim_dead([QUEUE], limit=10, lease=LEASE, token=uuid4())).deliveries)


# -------------------------------------------------------------------------------------------- claims


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("limit", [1, 10])
async def test_an_aborted_claim_takes_its_message_once(mysql_url: str, place: int, limit: int) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message())

        async with aborted_after(place):
            [delivery] = await claim(store, limit=limit)

        assert delivery.deliveries == 1
        assert await settled(store, [delivery], Done()) == [WriteResult.WRITTEN]


@pytest.mark.parametrize("place", PLACES)
async def test_a_claim_that_others_aborted_leaves_them_what_they_took(mysql_url: str, place: int) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        await store.publish(message())
        theirs: list[Delivery] = []

        async def take_it() -> None:
            theirs.extend(await claim(other))

        async with aborted_after(place, meanwhile=take_it):
            ours = await claim(store)

        assert len(ours + theirs) == 1
        assert await settled(other, ours + theirs, Done()) == [WriteResult.WRITTEN]


@pytest.mark.parametrize("place", PLACES)
async def test_a_claim_of_letters_that_others_aborted_leaves_them_what_they_took(
    mysql_url: str, place: int
) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        await bury(store, b"dead")
        theirs: list[Delivery] = []

        async def take_it() -> None:
            theirs.extend(await take(other))

        async with aborted_after(place, meanwhile=take_it):
            ours = await take(store)

        assert len(ours + theirs) == 1
        assert await settled(other, ours + theirs, Done()) == [WriteResult.WRITTEN]


# --------------------------------------------------------------------------------------- settlements


@pytest.mark.parametrize("place", PLACES)
async def test_an_aborted_settlement_is_carried_out_whole_and_once(mysql_url: str, place: int) -> None:
    async with open_store(mysql_url, keep_delivered=True) as store:
        await store.publish_batch([message(b"done", ordering_key="k"), message(b"dead"), message(b"again")])
        deliveries = await claim(store)

        async with aborted_after(place):
            results = await settled(store, deliveries, Done(), Dead("rejected"), Retry(HOUR))

        assert results == [WriteResult.WRITTEN] * 3
        assert await run(mysql_url, "select body from nightmail_delivered") == [(b"done",)]
        assert [letter.body for letter in await store.dead(EVERYTHING)] == [b"dead"]
        assert [(each.body, each.attempts) for each in await store.peek()] == [(b"again", 1)]


@pytest.mark.parametrize("place", PLACES)
async def test_an_aborted_settlement_of_letters_is_carried_out_whole_and_once(
    mysql_url: str, place: int
) -> None:
    async with open_store(mysql_url) as store:
        await bury(store, b"done", b"again")
        letters = await take(store)

        async with aborted_after(place):
            results = await settled(store, letters, Done(), Retry())

        assert results == [WriteResult.WRITTEN] * 2
        [left] = await take(store)
        assert (left.body, left.attempts) == (b"again", 1)


@pytest.mark.parametrize("place", PLACES)
async def test_a_settlement_leaves_alone_what_was_taken_over_when_it_was_aborted(
    mysql_url: str, place: int
) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        await store.publish(message())
        late = list((await store.claim([QUEUE], limit=1, lease=timedelta(0), token=uuid4())).deliveries)
        theirs: list[Delivery] = []

        async def take_over() -> None:
            theirs.extend(await claim(other))

        async with aborted_after(place, meanwhile=take_over):
            [result] = await settled(store, late, Dead("rejected"))

        if theirs:
            assert result is WriteResult.LOST
            assert await store.dead(EVERYTHING) == []
            assert await settled(other, theirs, Done()) == [WriteResult.WRITTEN]
        else:
            assert result is WriteResult.WRITTEN
            assert len(await store.dead(EVERYTHING)) == 1


# ---------------------------------------------------------------------------- what an operator asks


@pytest.mark.parametrize("place", PLACES)
async def test_an_aborted_redrive_moves_each_letter_once(mysql_url: str, place: int) -> None:
    async with open_store(mysql_url) as store:
        letters = await bury(store, b"1", b"2")

        async with aborted_after(place):
            ids = await store.redrive(letters)

        assert [(each.id, each.body) for each in await store.peek()] == list(
            zip(ids, [b"1", b"2"], strict=True)
        )
        assert await store.dead(EVERYTHING) == []


@pytest.mark.parametrize("place", PLACES)
async def test_a_redrive_that_others_aborted_leaves_them_the_letters_they_took(
    mysql_url: str, place: int
) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        letters = await bury(store, b"1", b"2")
        theirs: list[Delivery] = []

        async def take_them() -> None:
            theirs.extend(await take(other))

        async with aborted_after(place, meanwhile=take_them):
            ids = await store.redrive(letters)

        assert len(ids) == (0 if theirs else 2)
        assert len(await store.peek()) == len(ids)
        assert len(await store.dead(EVERYTHING)) == len(theirs)


@pytest.mark.parametrize("place", PLACES)
async def test_a_sweep_that_others_aborted_leaves_them_the_letters_they_took(
    mysql_url: str, place: int
) -> None:
    async with (
        open_store(mysql_url, keep_delivered=True) as store,
        open_store(mysql_url) as other,
    ):
        await store.publish(message(timer_id="t", dedup_for=timedelta(microseconds=1)))
        assert await settled(store, await claim(store), Done()) == [WriteResult.WRITTEN]
        await bury(store, b"dead")
        theirs: list[Delivery] = []

        async def take_it() -> None:
            theirs.extend(await take(other))

        async with aborted_after(place, meanwhile=take_it):
            swept = await store.sweep(older_than=timedelta(0), limit=10)

        assert swept == Swept(delivered=1, dead=0 if theirs else 1, dedup=1)
        assert len(await store.dead(EVERYTHING)) == len(theirs)


# ---------------------------------------------------------------------------------------- the session


async def test_a_node_tries_nothing_again_by_itself(mysql_url: str) -> None:
    # Of a transaction that it has rolled back it would repeat the commit alone, and say that all went well.
    async with open_store(mysql_url) as store:
        await claim(store)
        assert store._opening.now is not None

        (found,) = await store._opening.now.claim_lane.run(
            lambda link: link.ask("select @@wsrep_retry_autocommit")
        )

        assert found.rows[0][0] == 0
