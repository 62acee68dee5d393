"""A verb that fails has written nothing, and what goes with it in one batch or at the same time is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import pytest

from nightmail.errors import LeaseLost, MessageTooLarge, TimerExists
from nightmail.outcome import Dead, Done, Outcome, WriteResult
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    QUEUE,
    bodies,
    claim_all,
    fresh_token,
    message,
    promptly,
    settle_one,
    timer,
)
from nightmail.testing.conformance.build_scene import Scene, arranged, picture, write_everywhere
from nightmail.testing.conformance.lease import every_outcome

Verb = Callable[[FullStore, Scene], Awaitable[object]]

REFUSED: Final[dict[str, tuple[type[Exception], Verb]]] = {
    "a timer id that is taken": (
        TimerExists,
        lambda store, _: store.publish(timer("waiting", on_conflict="raise", dedup_for=HOUR)),
    ),
    "a timer id of a running message": (
        TimerExists,
        lambda store, _: store.publish(timer("running", on_conflict="raise", dedup_for=HOUR)),
    ),
    "a replacement by a late worker": (
        LeaseLost,
        lambda store, scene: store.publish(timer("waiting", on_conflict="replace"), own=scene.lost),
    ),
    "a new message of a late worker": (
        LeaseLost,
        lambda store, scene: store.publish(timer("new", ordering_key="new"), own=scene.lost),
    ),
    "a body that is too large": (
        MessageTooLarge,
        lambda store, _: store.publish(
            timer("waiting", bytes(store.max_body_bytes + 1), on_conflict="replace")
        ),
    ),
    "a batch of which one is too large": (
        MessageTooLarge,
        lambda store, _: store.publish_batch(
            [message(), message(bytes(store.max_body_bytes + 1)), message(queue="other")]
        ),
    ),
    "a batch of which one has a timer id": (
        ValueError,
        lambda store, _: store.publish_batch([message(), timer("new"), message(queue="other")]),
    ),
    "a redrive into no queue": (ValueError, lambda store, scene: store.redrive(scene.letters, to="")),
    "an automatic pause without an end": (
        ValueError,
        lambda store, _: store.pause(QUEUE, by="breaker", automatic=True),
    ),
}


class RefusedConformance:
    """Verbs that fail, alone, in a batch and at the same time as others."""

    @pytest.mark.parametrize("verb", REFUSED)
    async def test_a_verb_that_fails_has_written_nothing_and_leaves_nothing_locked(
        self, store: FullStore, other: FullStore, clock: ManualClock, verb: str
    ) -> None:
        error, refused = REFUSED[verb]
        scene = await arranged(store, clock)
        before = await picture(other, scene)

        with pytest.raises(error):
            await refused(store, scene)

        assert await picture(other, scene) == before
        assert await picture(store, scene) == before
        async with promptly():
            await write_everywhere(other, scene, clock)

    async def test_of_publishes_at_the_same_time_only_those_that_are_refused_fail(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        scene = await arranged(store, clock)
        before = {each.id for each in await other.peek()}

        results = await asyncio.gather(
            store.publish(message(b"first")),
            store.publish(timer("waiting", on_conflict="raise")),
            store.publish(message(b"second")),
            store.publish(message(bytes(store.max_body_bytes + 1))),
            store.publish(timer("new", b"third")),
            store.publish(message(), own=scene.lost),
            store.publish(message(b"fourth", ordering_key="new")),
            store.publish_batch([message(), timer("also new")]),
            store.publish(message(b"fifth")),
            return_exceptions=True,
        )

        assert [type(result) for result in results[1::2]] == [
            TimerExists,
            MessageTooLarge,
            LeaseLost,
            ValueError,
        ]
        # Each once, under the id that its own publish returned.
        found = [each for each in await other.peek() if each.id not in before]
        assert {each.body: each.id for each in found} == dict(
            zip((b"first", b"second", b"third", b"fourth", b"fifth"), results[::2], strict=True)
        )
        assert len(found) == 5

    @every_outcome
    async def test_a_foreign_token_in_a_batch_writes_nothing_and_its_neighbours_are_written(
        self, store: FullStore, other: FullStore, outcome: Outcome
    ) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(3)])
        first, own, last = await claim_all(store, lease=LEASE)
        foreign = replace(own, token=fresh_token())
        before = await other.find([own.id])

        batch = [Settlement(each, outcome) for each in (first, foreign, last)]
        results = await store.settle(batch)

        assert results == [WriteResult.WRITTEN, WriteResult.LOST, WriteResult.WRITTEN]
        assert await other.find([own.id]) == before
        assert bodies(await other.find([first.id, own.id, last.id])) == (
            [b"1"] if isinstance(outcome, (Done, Dead)) else [b"0", b"1", b"2"]
        )
        assert await settle_one(other, own, Done()) is WriteResult.WRITTEN

    async def test_a_foreign_token_among_extended_leases_extends_nothing_and_its_neighbours_are_extended(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(3)])
        first, own, last = await claim_all(store, lease=LEASE)
        ends = {each.id: each.lease_until for each in await other.leases()}

        results = await store.extend([first, replace(own, token=fresh_token()), last], HOUR)

        assert results == [WriteResult.WRITTEN, WriteResult.LOST, WriteResult.WRITTEN]
        longer = HOUR - LEASE
        assert {each.id: each.lease_until for each in await other.leases()} == {
            first.id: ends[first.id] + longer,
            own.id: ends[own.id],
            last.id: ends[last.id] + longer,
        }
