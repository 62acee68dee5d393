"""What a worker has in hand."""

from __future__ import annotations

import asyncio

from nightmail.engine.in_flight import InFlight
from nightmail.engine.leases import Leases
from nightmail.engine.slot import HandlerSlot
from nightmail.message import Delivery
from tests.unit.support import delivery, ids, soon


def holding(count: int) -> tuple[InFlight, list[Delivery]]:
    """A hand with so many waiting."""
    in_flight = InFlight()
    taken = [delivery(id=number) for number in range(1, count + 1)]
    in_flight.take(taken)
    return in_flight, taken


def runner(in_flight: InFlight) -> HandlerSlot:
    """A place to run something in."""
    slot = HandlerSlot(asyncio.create_task(asyncio.sleep(0)), Leases())
    in_flight.slots.append(slot)
    return slot


async def test_deliveries_start_in_the_order_in_which_they_were_taken() -> None:
    in_flight, taken = holding(3)
    slots = [runner(in_flight) for _ in range(3)]

    for slot in slots:
        in_flight.start(slot, 0.0)

    assert [list(slot.results) for slot in slots] == [[each] for each in taken]


async def test_what_waits_and_what_runs_is_counted_apart() -> None:
    in_flight, _ = holding(3)
    slot = runner(in_flight)
    in_flight.start(slot, 0.0)

    assert (in_flight.waiting, in_flight.running) == (2, 1)
    assert in_flight.tasks() == [slot.task]
    in_flight.finish(slot)
    assert (in_flight.waiting, in_flight.running) == (2, 0)


async def test_a_hand_is_empty_when_nothing_waits_and_nothing_runs() -> None:
    in_flight, _ = holding(1)
    slot = runner(in_flight)
    waiting = asyncio.create_task(in_flight.wait_empty())
    await asyncio.sleep(0)
    assert not in_flight.is_empty

    in_flight.start(slot, 0.0)
    await asyncio.sleep(0)
    assert not waiting.done()

    in_flight.finish(slot)
    await soon(waiting)
    assert in_flight.is_empty


def test_taking_nothing_leaves_a_hand_empty() -> None:
    in_flight = InFlight()
    in_flight.take([])

    assert in_flight.is_empty


def test_what_has_not_started_can_be_given_back_in_order() -> None:
    in_flight, taken = holding(3)

    assert in_flight.give_back() == taken
    assert in_flight.is_empty
    assert in_flight.give_back() == []


async def test_what_would_start_next_can_be_kept() -> None:
    in_flight, _ = holding(5)
    slot = runner(in_flight)

    assert ids(in_flight.give_back(keep=2)) == [3, 4, 5]
    assert in_flight.waiting == 2
    in_flight.start(slot, 0.0)
    assert ids(slot.results) == [1]
    assert in_flight.give_back(keep=7) == []


async def test_only_what_has_not_started_can_be_forgotten() -> None:
    in_flight, [first, second] = holding(2)
    slot = runner(in_flight)
    in_flight.start(slot, 0.0)

    assert in_flight.forget(first) is False
    assert in_flight.forget(second) is True
    assert in_flight.forget(second) is False
    assert (in_flight.waiting, in_flight.running) == (0, 1)


def test_another_delivery_of_the_same_message_is_another() -> None:
    in_flight, _ = holding(1)

    assert in_flight.forget(delivery(id=1)) is False
    assert in_flight.waiting == 1
