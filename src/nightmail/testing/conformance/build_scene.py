"""A store with something of everything, all that an operator sees of it, and a writer who needs all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from nightmail.message import DeadDelivery, Delivery
from nightmail.outcome import Release, WriteResult
from nightmail.records import DeadLetter
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    EVERYTHING,
    HOUR,
    LEASE,
    SECOND,
    bury,
    claim_all,
    claim_letters,
    message,
    stored,
    timer,
)
from nightmail.testing.conformance.workers import a_report

PAUSED: Final = "paused"


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is: also a timer that waits, a paused queue and a worker that has reported."""

    running: Sequence[Delivery]
    """Two messages; the first is a timer and holds an ordering key, for which another waits."""
    lost: Delivery
    """A delivery whose lease another worker has taken over."""
    held: Sequence[DeadDelivery]
    """Two dead letters."""
    letters: Sequence[DeadLetter]
    """Two that are not held."""


async def arranged(store: FullStore, clock: ManualClock) -> Scene:
    """Something of everything."""
    for number in range(4):
        await bury(store, message(b"dead %d" % number))
        clock.advance(SECOND)
    held = await claim_letters(store, limit=2, lease=HOUR)
    letters = [each for each in await store.dead(EVERYTHING) if each.id not in {one.id for one in held}]
    await stored(store, message(b"lost"))
    (lost,) = await claim_all(store, lease=SECOND)
    clock.advance(SECOND)
    await claim_all(store, lease=HOUR)
    await stored(store, timer("running", b"running", ordering_key="key"))
    await stored(store, message(b"also running"))
    running = await claim_all(store, lease=LEASE)
    await stored(store, timer("waiting", b"waiting"))
    await stored(store, message(b"behind", ordering_key="key"))
    await store.pause(PAUSED, by="ann")
    await store.report(a_report())
    return Scene(running, lost, held, letters)


async def picture(store: FullStore, scene: Scene) -> dict[str, Any]:
    """All that this store shows."""
    return {
        "waiting": await store.peek(),
        "leases": await store.leases(),
        "dead": await store.dead(EVERYTHING),
        "stats": await store.stats(),
        "facts": [await store.facts(each.id) for each in scene.running],
        "pauses": await store.pauses(),
        "workers": await store.workers(),
    }


async def write_everywhere(store: FullStore, scene: Scene, clock: ManualClock) -> None:
    """Write to everything there is: fails when something is locked, or hangs."""
    for leased in (scene.running, scene.held):
        assert WriteResult.BUSY not in await store.extend(leased, HOUR)
        assert WriteResult.BUSY not in await store.settle([Settlement(each, Release()) for each in leased])
    await store.publish(timer("waiting", on_conflict="replace"))
    await store.resume(PAUSED)
    await store.report(a_report())
    # Nothing is leased any more. What another transaction has locked would be waited for, or left.
    clock.advance(2 * HOUR)
    for queue in await store.stats():
        await store.cancel_all(queue)
    await store.purge(EVERYTHING, limit=100)
    assert await store.stats() == {}
