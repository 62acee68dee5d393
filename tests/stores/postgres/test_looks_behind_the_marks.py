"""What a claim still finds, and when, where a look behind the marks costs too much to be made each time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from nightmail.errors import StoreUnavailable
from nightmail.outcome import Release
from nightmail.store import Claimed, Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.stores.postgres.claiming import BEGINNING, Claims
from nightmail.stores.shared import marks
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from tests.stores.postgres.support import connection, open_store
from tests.stores.support import done

pytestmark = pytest.mark.postgres

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(
    postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PostgresStore]:
    """A store for which every look without marks is dear, and the next one a second away."""
    monkeypatch.setattr(marks, "CHEAP", -1.0)
    async with open_store(postgres_url, clock=clock) as store:
        yield store


async def claim(store: PostgresStore, *, limit: int = 10) -> Claimed:
    return await store.claim([QUEUE], limit=limit, lease=LEASE, token=uuid4())


async def bodies(store: PostgresStore) -> list[bytes]:
    return [delivery.body for delivery in (await claim(store)).deliveries]


async def pass_by(store: PostgresStore) -> None:
    """Look without marks, then take something: from now on the marks are at this moment."""
    assert not (await claim(store)).deliveries
    await store.publish(message(b"passed"))
    await done(store, list((await claim(store)).deliveries))


def claims_of(store: PostgresStore) -> Claims:
    assert store._opened is not None
    return store._opened.claims


async def test_what_commits_late_waits_for_the_next_look_behind_the_marks_and_no_longer(
    store: PostgresStore, clock: ManualClock, postgres_url: str
) -> None:
    async with connection(postgres_url) as own:
        async with own.transaction():
            await store.publish(message(b"late"), transaction=own)
            clock.advance(MINUTE)
            await pass_by(store)
        clock.advance(SECOND / 4)
        claimed = await claim(store)

    assert not claimed.deliveries
    assert not claimed.full
    assert claimed.next_in == SECOND * 3 / 4 + MILLISECOND
    clock.advance(claimed.next_in)
    assert await bodies(store) == [b"late"]


async def test_what_commits_within_a_second_is_found_at_once(
    store: PostgresStore, clock: ManualClock, postgres_url: str
) -> None:
    async with connection(postgres_url) as own:
        async with own.transaction():
            await store.publish(message(b"a little late"), transaction=own)
            clock.advance(SECOND * 0.9)
            await pass_by(store)

        assert await bodies(store) == [b"a little late"]


async def test_what_becomes_due_is_found_at_once_at_every_level(
    store: PostgresStore, clock: ManualClock
) -> None:
    await store.publish(message(b"later", priority=7, due=SECOND / 2))
    await pass_by(store)
    assert (await claim(store)).next_in == SECOND / 2

    clock.advance(SECOND / 2)

    assert await bodies(store) == [b"later"]


async def test_an_expired_lease_is_found_by_the_next_look_behind_the_marks(
    store: PostgresStore, clock: ManualClock, postgres_url: str
) -> None:
    async with open_store(postgres_url, clock=clock) as other:
        await other.publish(message(b"its worker died"))
        assert await bodies(other) == [b"its worker died"]
    clock.advance(LEASE - SECOND / 2)
    await pass_by(store)
    # The look without marks knew when the lease ends. Nothing more is known by those that were spared it.
    clock.advance(SECOND / 2)
    claimed = await claim(store)

    assert not claimed.deliveries
    assert claimed.next_in is not None
    assert claimed.next_in <= SECOND / 2 + MILLISECOND
    clock.advance(claimed.next_in)
    assert await bodies(store) == [b"its worker died"]


async def test_what_was_released_is_found_at_once(store: PostgresStore, clock: ManualClock) -> None:
    await store.publish(message(b"released"))
    held = (await claim(store)).deliveries
    clock.advance(SECOND * 10)
    await pass_by(store)

    await store.settle([Settlement(delivery, Release()) for delivery in held])

    assert await bodies(store) == [b"released"]


async def test_what_was_recalled_is_found_at_once(store: PostgresStore, clock: ManualClock) -> None:
    await store.publish(message(b"recalled"))
    token = uuid4()
    await store.claim([QUEUE], limit=1, lease=LEASE, token=token)
    clock.advance(SECOND * 10)
    await pass_by(store)

    assert await store.recall([QUEUE], token) == 1

    assert await bodies(store) == [b"recalled"]


async def test_what_waited_for_an_ordering_key_is_found_at_once_when_it_is_freed(
    store: PostgresStore, clock: ManualClock
) -> None:
    for number in range(3):
        await store.publish(message(b"%d" % number, ordering_key="one", priority=number))
    held = (await claim(store)).deliveries
    for number in range(3):
        assert [delivery.body for delivery in held] == [b"%d" % number]
        clock.advance(SECOND * 5)
        await pass_by(store)
        await done(store, list(held))
        # A claim that is full has not come so far.
        await store.publish(message(b"first", priority=9))
        assert [delivery.body for delivery in (await claim(store, limit=1)).deliveries] == [b"first"]
        held = (await claim(store)).deliveries

    assert not held


async def test_after_the_clock_was_set_back_new_messages_are_found_at_once(
    store: PostgresStore, clock: ManualClock
) -> None:
    await pass_by(store)
    clock.advance(-MINUTE)
    await store.publish(message(b"now"))

    assert await bodies(store) == [b"now"]


async def test_after_the_servers_clock_was_set_back_new_messages_are_found_at_once(
    store: PostgresStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds of this process go on."""
    seconds = clock.now().timestamp()
    monkeypatch.setattr(claims_of(store), "_seconds", lambda: seconds)
    await pass_by(store)
    clock.advance(-MINUTE)
    await store.publish(message(b"now"))

    assert await bodies(store) == [b"now"]


async def test_after_wake_ups_were_missed_everything_is_found_at_once(
    store: PostgresStore, clock: ManualClock, postgres_url: str
) -> None:
    async with connection(postgres_url) as own:
        async with own.transaction():
            await store.publish(message(b"late"), transaction=own)
            clock.advance(MINUTE)
            await pass_by(store)
        with store.listen([QUEUE]) as bell:
            await bell.wait(30.0)

            assert await bodies(store) == [b"late"]


# -------------------------------------------------------------------- looks that the server gives up


class TooMuch:
    """A server that gives up every claim that looks through more than what lies ahead of the marks."""

    def __init__(self, clock: ManualClock, ask: Callable[..., Any]) -> None:
        self.holds = True
        self.given_up = 0
        self.seconds = SECOND * 10
        self._clock = clock
        self._ask = ask

    def __call__(self, name: str, values: Mapping[str, Any]) -> Any:
        if name == "claim" and self.holds and BEGINNING[0] in values["from_at"]:
            self.given_up += 1
            self._clock.advance(self.seconds)
            raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")
        return self._ask(name, values)


@pytest.fixture
def too_much(store: PostgresStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> TooMuch:
    monkeypatch.setattr(marks, "CHEAP", 0.01)
    claims = claims_of(store)
    double = TooMuch(clock, claims._ask)
    monkeypatch.setattr(claims, "_ask", double)
    return double


async def test_where_a_look_behind_the_marks_always_takes_too_long_claims_go_on(
    store: PostgresStore, clock: ManualClock, too_much: TooMuch
) -> None:
    for number in range(20):
        await store.publish(message(b"%d" % number))
        assert await bodies(store) == [b"%d" % number]
        clock.advance(SECOND / 2)

    assert too_much.given_up == 1


async def test_what_was_left_behind_is_looked_for_further_back_each_time(
    store: PostgresStore, clock: ManualClock, too_much: TooMuch
) -> None:
    await store.publish(message(b"left behind"))
    clock.advance(HOUR)
    found: list[bytes] = []
    looks = 0
    while not found and looks < 20:
        claimed = await claim(store)
        found = [delivery.body for delivery in claimed.deliveries]
        assert not claimed.full
        clock.advance(min(claimed.next_in or SECOND, SECOND))
        looks += 1

    # Not before the second hour would be covered: 1, 2, 4, ... 4096 seconds.
    assert found == [b"left behind"]
    assert too_much.given_up == 1


async def test_in_the_end_everything_is_looked_through_again(
    store: PostgresStore, clock: ManualClock, too_much: TooMuch
) -> None:
    await claim(store)
    for _ in range(40):
        clock.advance(SECOND)
        await claim(store)

    # By then there is no end to how far it goes back.
    assert too_much.given_up > 1
    too_much.holds = False
    for _ in range(40):
        clock.advance(SECOND)
        await claim(store)
    assert not claims_of(store)._marks.is_dear(QUEUE)


async def test_a_claim_that_was_canceled_by_hand_fails(store: PostgresStore, too_much: TooMuch) -> None:
    too_much.seconds = timedelta(0)

    with pytest.raises(StoreUnavailable):
        await claim(store)
