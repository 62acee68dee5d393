"""Bringing dead letters back and deleting them, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from uuid import uuid4

import pytest

from nightmail.engine import redriving
from nightmail.engine.redriving import empty, purge, redrive
from nightmail.errors import StoreUnavailable
from nightmail.limits import MAX_BODY_BYTES
from nightmail.message import Message
from nightmail.outcome import Dead
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import Call, FaultyStore, LateReply, lost_reply, lost_request
from tests.unit.support import MINUTE, QUEUE, publish, publish_timer, take

ALL = DeadFilter()


@pytest.fixture
def chunks_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few letters or messages need several steps."""
    monkeypatch.setattr(redriving, "CHUNK", 10)
    monkeypatch.setattr(redriving, "MESSAGES", 10)


class Watch:
    """A clock that only sleeping moves on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(round(seconds, 6))
        self.now += seconds


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """The time that passes between chunks."""
    watch = Watch()
    monkeypatch.setattr(redriving, "monotonic", watch.monotonic)
    monkeypatch.setattr(redriving, "sleep", watch.sleep)
    return watch


async def bury(store: FaultyStore, limit: int = 10_000, reason: str = "broken") -> None:
    """Let all that is due die."""
    taken = await take(store, limit)
    await store.settle([Settlement(each, Dead(reason)) for each in taken])


async def died(store: FaultyStore, count: int, **fields: object) -> None:
    """Publish so many messages, and let them die."""
    await publish(store, count, **fields)
    await bury(store)


async def timer_died(store: FaultyStore, name: str, body: bytes = b"", queue: str = QUEUE) -> None:
    """Publish a timer, and let it die."""
    await publish_timer(store, name, body=body, queue=queue)
    [taken] = (await store.claim([queue], limit=1, lease=MINUTE, token=uuid4())).deliveries
    await store.settle([Settlement(taken, Dead("broken"))])


async def bodies(store: FaultyStore, queue: str = QUEUE) -> list[bytes]:
    """What waits, in the order of its ids."""
    waiting = await store.peek(queue, limit=10_000)
    return [each.body for each in sorted(waiting, key=lambda each: each.id)]


async def letters(store: FaultyStore, which: DeadFilter = ALL) -> list[int]:
    """The ids of the dead letters, oldest first."""
    return [letter.id for letter in await store.dead(which, limit=10_000)][::-1]


def numbers(which: Iterable[int]) -> list[bytes]:
    """The bodies of messages that were published by number."""
    return [b"%d" % number for number in which]


# ── redrive ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_all_letters_come_back_the_oldest_first_however_many_chunks_it_takes(
    store: FaultyStore, chunks_of_ten: None
) -> None:
    await died(store, 25)

    assert await redrive(store, ALL) == 25

    assert await bodies(store) == numbers(range(25))
    assert await letters(store) == []
    assert store.calls["redrive"] == 3


async def test_it_tells_how_many_it_has_looked_through_before_the_first_moves(
    store: FaultyStore, chunks_of_ten: None
) -> None:
    await died(store, 25)
    told: list[tuple[str, int]] = []

    await redrive(
        store,
        ALL,
        reading=lambda read: told.append(("read", read)),
        progress=lambda moved, _: told.append(("moved", moved)),
    )

    assert told == [("read", 10), ("read", 20), ("read", 25), ("moved", 10), ("moved", 20), ("moved", 25)]


async def test_all_large_letters_come_back_though_one_page_has_no_room_for_them(store: FaultyStore) -> None:
    # A page has room for 16 MiB: three of 4 MiB, with their headers. More in one step would stay dead, untold.
    large = b"x" * MAX_BODY_BYTES
    for _ in range(7):
        await died(store, 1, body=large)

    assert await redrive(store, ALL) == 7

    assert await letters(store) == []
    assert len(await bodies(store)) == 7
    assert store.calls["redrive"] == 3


async def test_a_letter_larger_than_a_page_comes_back_in_a_step_of_its_own(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "CLAIM_BYTES", 10)
    for body in (b"small", b"larger than a page", b"tiny"):
        await died(store, 1, body=body)

    assert await redrive(store, ALL) == 3

    assert await bodies(store) == [b"small", b"larger than a page", b"tiny"]
    assert store.calls["redrive"] == 3


async def test_with_nothing_to_redrive_nothing_is_asked_for(store: FaultyStore) -> None:
    assert await redrive(store, ALL) == 0
    assert store.calls["redrive"] == 0


async def test_only_those_that_are_meant_come_back(store: FaultyStore) -> None:
    await publish(store, 1, body=b"a")
    await bury(store, reason="odd")
    await publish(store, 1, body=b"b")
    await bury(store, reason="even")

    assert await redrive(store, DeadFilter(reason="even")) == 1

    assert await bodies(store) == [b"b"]
    assert await letters(store) == [1]


async def test_they_may_go_to_another_queue(store: FaultyStore) -> None:
    await died(store, 2)

    assert await redrive(store, ALL, to="post") == 2

    assert await bodies(store, "post") == numbers(range(2))
    assert await bodies(store) == []


@pytest.mark.parametrize("limit", [1, 9, 10, 11, 25])
async def test_no_more_come_back_than_asked_for_and_the_oldest_do(
    store: FaultyStore, chunks_of_ten: None, limit: int
) -> None:
    await died(store, 25)

    assert await redrive(store, ALL, limit=limit) == limit

    assert await bodies(store) == numbers(range(limit))
    assert await letters(store) == list(range(limit + 1, 26))


async def test_of_several_letters_of_one_timer_only_the_newest_goes(
    store: FaultyStore, chunks_of_ten: None
) -> None:
    await timer_died(store, "daily", b"first")
    await died(store, 20)
    await timer_died(store, "daily", b"second")
    await died(store, 20)
    await timer_died(store, "daily", b"third")

    assert await redrive(store, ALL) == 41

    assert [each.body for each in await store.peek(QUEUE, timer_id="daily")] == [b"third"]
    assert [letter.body for letter in await store.dead(ALL)] == [b"second", b"first"]


async def test_one_timer_id_in_two_queues_is_two_names(store: FaultyStore) -> None:
    for queue in ("mail", "post"):
        await timer_died(store, "daily", queue.encode(), queue=queue)

    assert await redrive(store, ALL) == 2

    assert (await bodies(store, "mail"), await bodies(store, "post")) == ([b"mail"], [b"post"])


async def test_of_one_timer_id_in_two_queues_only_the_newest_goes_to_a_third(
    store: FaultyStore, chunks_of_ten: None
) -> None:
    await timer_died(store, "daily", b"mail", queue="mail")
    await died(store, 20)
    await timer_died(store, "daily", b"post", queue="post")

    assert await redrive(store, ALL, to="parcels") == 21

    assert [each.body for each in await store.peek("parcels", timer_id="daily")] == [b"post"]
    assert await letters(store) == [1]


async def test_without_their_names_all_go(store: FaultyStore) -> None:
    for body in (b"first", b"second"):
        await timer_died(store, "daily", body)
    await publish_timer(store, "daily", body=b"timer_owner")

    assert await redrive(store, ALL, keep_timer_ids=False) == 2

    assert await bodies(store) == [b"timer_owner", b"first", b"second"]
    assert [each.body for each in await store.peek(QUEUE, timer_id="daily")] == [b"timer_owner"]


async def test_a_letter_that_stays_is_not_counted_and_the_next_one_goes_in_its_place(
    store: FaultyStore, chunks_of_ten: None
) -> None:
    await publish(store, 1, body=b"held")
    await bury(store)
    await timer_died(store, "daily")
    await died(store, 30)
    await publish_timer(store, "daily", body=b"timer_owner", due=timedelta(hours=1))
    await store.claim_dead([QUEUE], limit=1, lease=MINUTE, token=uuid4())

    # The first is held, the name of the second is taken, and of the others a dozen goes.
    assert await redrive(store, ALL, limit=12) == 12

    assert (await letters(store))[:3] == [1, 2, 15]
    assert sorted(await bodies(store)) == sorted([b"timer_owner", *numbers(range(12))])


async def test_letters_that_all_stay_do_not_keep_it_going_for_ever(store: FaultyStore) -> None:
    await timer_died(store, "daily")
    await publish_timer(store, "daily", due=timedelta(hours=1))

    assert await redrive(store, ALL) == 0
    assert await letters(store) == [1]


async def test_what_dies_meanwhile_is_not_picked_up(store: FaultyStore, chunks_of_ten: None) -> None:
    async def dies_again(call: Call) -> list[int]:
        moved: list[int] = await call()
        await bury(store)
        return moved

    await died(store, 25)
    store.upset("redrive", dies_again, times=None)

    assert await redrive(store, ALL) == 25

    # Each died a second time, under a new letter.
    assert await letters(store) == list(range(26, 51))


async def test_a_letter_that_is_gone_meanwhile_is_not_missed(store: FaultyStore, chunks_of_ten: None) -> None:
    async def purged_first(call: Call) -> list[int]:
        await store.purge(DeadFilter(ids=tuple(range(11, 26))), limit=100)
        moved: list[int] = await call()
        return moved

    await died(store, 25)
    store.upset("redrive", purged_first)

    assert await redrive(store, ALL) == 10


@pytest.mark.parametrize("fault", [lost_request, lost_reply])
async def test_after_an_outage_the_same_call_moves_the_rest(
    store: FaultyStore, chunks_of_ten: None, fault: object
) -> None:
    async def second(call: Call) -> list[int]:
        store.upset("redrive", fault)  # type: ignore[type-var]
        moved: list[int] = await call()
        return moved

    await died(store, 25)
    store.upset("redrive", second)
    with pytest.raises(StoreUnavailable):
        await redrive(store, ALL)

    assert await redrive(store, ALL) == (15 if fault is lost_request else 5)

    assert await bodies(store) == numbers(range(25))
    assert await letters(store) == []


# ── rate ──────────────────────────────────────────────────────────────────────────────────────────────────


async def moves(store: FaultyStore, watch: Watch, rate: float, count: int) -> list[tuple[float, int]]:
    """When how many came back."""
    moved: list[tuple[float, int]] = []

    async def note(call: Call) -> list[int]:
        ids: list[int] = await call()
        moved.append((round(watch.now - 1000.0, 6), len(ids)))
        return ids

    await died(store, count)
    store.upset("redrive", note, times=None)
    assert await redrive(store, ALL, rate=rate) == count
    return moved


@pytest.mark.parametrize(
    ("rate", "count", "expected"),
    [
        (100, 35, [(0.0, 10), (0.1, 10), (0.2, 10), (0.3, 5)]),
        (25, 6, [(0.0, 2), (0.08, 2), (0.16, 2)]),
        (2, 3, [(0.0, 1), (0.5, 1), (1.0, 1)]),
        (0.5, 3, [(0.0, 1), (2.0, 1), (4.0, 1)]),
        (10_000, 1200, [(0.0, 500), (0.05, 500), (0.1, 200)]),
    ],
)
async def test_letters_come_back_evenly_and_no_faster_than_asked_for(
    store: FaultyStore, watch: Watch, rate: float, count: int, expected: list[tuple[float, int]]
) -> None:
    assert await moves(store, watch, rate, count) == expected


async def test_the_time_a_step_takes_is_not_waited_for_again(store: FaultyStore, watch: Watch) -> None:
    async def slow(call: Call) -> list[int]:
        watch.now += next(takes)
        ids: list[int] = await call()
        return ids

    takes = iter([0.03, 0.25, 0.0])
    await died(store, 30)
    store.upset("redrive", slow, times=None)
    watch.sleeps.clear()

    await redrive(store, ALL, rate=100)

    # The first sleep is the pause after the only page of letters.
    assert watch.sleeps == [0, 0.0, 0.07, 0.0]


async def test_what_stays_costs_no_time(store: FaultyStore, watch: Watch) -> None:
    for name in ("a", "b", "c"):
        await timer_died(store, name)
    for name in ("a", "b"):
        await publish_timer(store, name, due=timedelta(hours=1))

    assert await redrive(store, ALL, rate=1) == 1

    assert sum(watch.sleeps) == 0


async def test_without_a_rate_nothing_is_waited_for(
    store: FaultyStore, watch: Watch, chunks_of_ten: None
) -> None:
    await died(store, 25)

    await redrive(store, ALL)

    assert set(watch.sleeps) == {0.0}


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rate", [0, -1, -0.5, float("nan"), float("inf")])
async def test_a_rate_at_which_nothing_would_come_back_is_refused(store: FaultyStore, rate: float) -> None:
    with pytest.raises(ValueError, match=f"rate must be more than nothing a second, not {rate}"):
        await redrive(store, ALL, rate=rate)
    assert not store.calls


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_of_nothing_is_refused(store: FaultyStore, limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit must be at least 1, not {limit}"):
        await redrive(store, ALL, limit=limit)
    with pytest.raises(ValueError, match=f"limit must be at least 1, not {limit}"):
        await purge(store, ALL, limit=limit)
    assert not store.calls


async def test_a_queue_that_cannot_be_is_refused_before_anything_moves(store: FaultyStore) -> None:
    with pytest.raises(ValueError, match="queue must not be empty"):
        await redrive(store, ALL, to="")
    assert not store.calls


# ── purge ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_all_letters_that_are_meant_are_deleted_however_many_chunks_it_takes(
    store: FaultyStore, chunks_of_ten: None
) -> None:
    await died(store, 20)
    await publish(store, 5)
    await bury(store, reason="wanted")

    assert await purge(store, DeadFilter(reason="broken")) == 20

    assert await letters(store) == [21, 22, 23, 24, 25]
    assert await purge(store, DeadFilter(reason="broken")) == 0


@pytest.mark.parametrize("limit", [1, 10, 13, 20])
async def test_no_more_are_deleted_than_asked_for_and_the_oldest_are(
    store: FaultyStore, chunks_of_ten: None, limit: int
) -> None:
    await died(store, 25)

    assert await purge(store, ALL, limit=limit) == limit

    assert await letters(store) == list(range(limit + 1, 26))


async def test_letters_that_are_held_stay_and_do_not_keep_it_going_for_ever(
    store: FaultyStore, clock: ManualClock, chunks_of_ten: None
) -> None:
    await died(store, 15)
    await store.claim_dead([QUEUE], limit=12, lease=MINUTE, token=uuid4())

    assert await purge(store, ALL) == 3
    clock.advance(MINUTE)
    assert await purge(store, ALL) == 12


async def test_no_message_is_ever_deleted(store: FaultyStore) -> None:
    await store.publish(Message(queue=QUEUE, body=b"waits"))

    assert await purge(store, ALL) == 0
    assert await bodies(store) == [b"waits"]


@pytest.mark.parametrize("verb", ["redrive", "purge", "cancel_all"])
async def test_a_step_that_is_interrupted_ends_and_is_counted_before_the_interruption_goes_on(
    verb: str, store: FaultyStore, chunks_of_ten: None
) -> None:
    if verb == "cancel_all":
        await publish(store, 25)
    else:
        await died(store, 25)
    counted: list[int] = []
    reply = store.upset(verb, LateReply())

    match verb:
        case "redrive":
            work = redrive(store, ALL, progress=lambda moved, _: counted.append(moved))
        case "purge":
            work = purge(store, ALL, progress=counted.append)
        case _:
            work = empty(store, QUEUE, progress=counted.append)
    running = asyncio.create_task(work)
    await reply.reached.wait()
    running.cancel()
    await asyncio.sleep(0)
    reply.open()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert counted == [10]
    assert len(await bodies(store) if verb == "cancel_all" else await letters(store)) == 15


# ── empty ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("limit", "left"), [(None, 0), (25, 0), (13, 12), (40, 0)])
async def test_a_queue_is_emptied_in_steps_and_no_more_is_removed_than_asked_for(
    store: FaultyStore, chunks_of_ten: None, limit: int | None, left: int
) -> None:
    await publish(store, 25)
    counted: list[int] = []

    assert await empty(store, QUEUE, limit=limit, progress=counted.append) == 25 - left

    assert len(await bodies(store)) == left
    assert counted[0] == 10


async def test_a_store_that_removes_less_than_it_could_is_asked_again(
    store: FaultyStore, chunks_of_ten: None
) -> None:
    async def only_one(_call: Call) -> int:
        return await store.cancel_all(QUEUE, limit=1)

    await publish(store, 5)
    store.upset("cancel_all", only_one)

    assert await empty(store, QUEUE, limit=5) == 5
