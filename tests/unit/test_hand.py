"""What a worker has in hand."""

from __future__ import annotations

import asyncio

from nightmail.hand import Hand
from nightmail.keeping import Leases
from nightmail.message import Delivery
from nightmail.run import Run
from tests.unit.support import delivery, ids, soon


def holding(count: int) -> tuple[Hand, list[Delivery]]:
    """A hand with so many waiting."""
    hand = Hand()
    taken = [delivery(id=number) for number in range(1, count + 1)]
    hand.take(taken)
    return hand, taken


def runner(hand: Hand) -> Run:
    """A place to run something in."""
    run = Run(asyncio.create_task(asyncio.sleep(0)), Leases())
    hand.runs.append(run)
    return run


async def test_deliveries_start_in_the_order_in_which_they_were_taken() -> None:
    hand, taken = holding(3)

    assert [hand.start_next(runner(hand), 0.0) for _ in range(3)] == taken


async def test_what_waits_and_what_runs_is_counted_apart() -> None:
    hand, _ = holding(3)
    run = runner(hand)
    hand.start_next(run, 0.0)

    assert (hand.waiting, hand.running) == (2, 1)
    assert hand.tasks() == [run.task]
    hand.finish(run)
    assert (hand.waiting, hand.running) == (2, 0)


async def test_a_hand_is_empty_when_nothing_waits_and_nothing_runs() -> None:
    hand, _ = holding(1)
    run = runner(hand)
    waiting = asyncio.create_task(hand.wait_empty())
    await asyncio.sleep(0)
    assert not hand.is_empty

    hand.start_next(run, 0.0)
    await asyncio.sleep(0)
    assert not waiting.done()

    hand.finish(run)
    await soon(waiting)
    assert hand.is_empty


def test_taking_nothing_leaves_a_hand_empty() -> None:
    hand = Hand()
    hand.take([])

    assert hand.is_empty


def test_what_has_not_started_can_be_given_back_in_order() -> None:
    hand, taken = holding(3)

    assert hand.give_back() == taken
    assert hand.is_empty
    assert hand.give_back() == []


async def test_what_would_start_next_can_be_kept() -> None:
    hand, _ = holding(5)
    run = runner(hand)

    assert ids(hand.give_back(keep=2)) == [3, 4, 5]
    assert hand.waiting == 2
    assert hand.start_next(run, 0.0).id == 1
    assert hand.give_back(keep=7) == []


async def test_only_what_has_not_started_can_be_forgotten() -> None:
    hand, [first, second] = holding(2)
    run = runner(hand)
    hand.start_next(run, 0.0)

    assert hand.forget(first) is False
    assert hand.forget(second) is True
    assert hand.forget(second) is False
    assert (hand.waiting, hand.running) == (0, 1)


def test_another_delivery_of_the_same_message_is_another() -> None:
    hand, _ = holding(1)

    assert hand.forget(delivery(id=1)) is False
    assert hand.waiting == 1
