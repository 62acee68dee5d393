"""What a verb wrote is committed when it returns, whatever state its connection was in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import pytest

from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    AT_ONCE,
    EVERYTHING,
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    fresh_token,
    message,
    promptly,
    timer,
)
from nightmail.testing.conformance.build_scene import PAUSED, Scene, arranged, picture, write_everywhere
from nightmail.testing.conformance.workers import FIRST, SECOND_ID, a_report

Verb: TypeAlias = Callable[[FullStore, Scene], Awaitable[object]]


def settled(outcome: Outcome) -> Verb:
    """Settle a message like this."""
    return lambda store, scene: store.settle([Settlement(scene.running[0], outcome)])


def letter_settled(outcome: Outcome) -> Verb:
    """Settle a dead letter like this."""
    return lambda store, scene: store.settle([Settlement(scene.held[0], outcome)])


VERBS: Final[dict[str, Verb]] = {
    "publish": lambda store, _: store.publish(message()),
    "publish a timer": lambda store, _: store.publish(timer("new", dedup_for=HOUR)),
    "replace": lambda store, _: store.publish(timer("waiting", b"new", on_conflict="replace")),
    "supersede": lambda store, _: store.publish(timer("running", b"new", on_conflict="replace")),
    "re-arm": lambda store, scene: store.publish(timer("running", b"new"), own=scene.running[0]),
    "publish a batch": lambda store, _: store.publish_batch([message(), message(queue="other")]),
    "claim": lambda store, _: store.claim([QUEUE], limit=9, lease=LEASE, token=fresh_token()),
    "recall": lambda store, scene: store.recall([QUEUE], scene.running[0].token),
    "done": settled(Done()),
    "retry": settled(Retry(MINUTE)),
    "postpone": settled(Postpone(MINUTE)),
    "dead": settled(Dead("rejected")),
    "release": settled(Release()),
    "done with a letter": letter_settled(Done()),
    "extend": lambda store, scene: store.extend(scene.running, HOUR),
    "cancel": lambda store, _: store.cancel(QUEUE, "waiting"),
    "cancel all": lambda store, _: store.cancel_all(QUEUE),
    "reschedule": lambda store, _: store.reschedule(QUEUE, "waiting", HOUR),
    "redrive": lambda store, scene: store.redrive(scene.letters),
    "purge": lambda store, _: store.purge(EVERYTHING, limit=9),
    "sweep": lambda store, _: store.sweep(older_than=AT_ONCE, limit=9),
    "pause": lambda store, _: store.pause(QUEUE, by="ann"),
    "resume": lambda store, _: store.resume(PAUSED),
    "request a stop": lambda store, scene: store.request_stop(scene.running[0].id, by="ann"),
    "report": lambda store, _: store.report(a_report(SECOND_ID)),
    "sign off": lambda store, _: store.sign_off(FIRST),
}
"""Those whose effect an operator sees."""
UNSEEN: Final[dict[str, Verb]] = {
    "claim dead": lambda store, _: store.claim_dead([QUEUE], limit=9, lease=LEASE, token=fresh_token()),
    "recall dead": lambda store, scene: store.recall_dead([QUEUE], scene.held[0].token),
    "give a letter up": letter_settled(Dead("given up")),
    "extend letters": lambda store, scene: store.extend(scene.held, 2 * HOUR),
    "a publish that stores nothing": lambda store, _: store.publish(timer("waiting")),
    "a settlement that is late": lambda store, scene: store.settle([Settlement(scene.lost, Done())]),
    "an extension that is late": lambda store, scene: store.extend([scene.lost], HOUR),
    "a probe that did not run, of a queue that is not paused": lambda store, scene: store.probe_again(
        scene.running[0]
    ),
    "cancel what is running": lambda store, _: store.cancel(QUEUE, "running"),
}
"""Those that write nothing, or only what the next holder of a dead letter sees."""


class CommittedConformance:
    """Each verb: another process sees at once what it wrote, and nothing stays locked."""

    @pytest.mark.parametrize("verb", VERBS)
    async def test_what_a_verb_wrote_is_seen_at_once_by_another_process_and_nothing_stays_locked(
        self, store: FullStore, other: FullStore, clock: ManualClock, verb: str
    ) -> None:
        scene = await arranged(store, clock)
        before = await picture(other, scene)

        await VERBS[verb](store, scene)

        seen = await picture(other, scene)
        assert seen != before
        assert seen == await picture(store, scene)
        async with promptly():
            await write_everywhere(other, scene, clock)

    @pytest.mark.parametrize("verb", UNSEEN)
    async def test_a_verb_whose_effect_is_not_seen_leaves_nothing_locked(
        self, store: FullStore, other: FullStore, clock: ManualClock, verb: str
    ) -> None:
        scene = await arranged(store, clock)

        await UNSEEN[verb](store, scene)

        async with promptly():
            await write_everywhere(other, scene, clock)
