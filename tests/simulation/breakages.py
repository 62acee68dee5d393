"""Engines and stores that are broken on purpose, each in one place: the simulation has to notice every one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from unittest.mock import patch

from nightmail.engine import attempt, claiming, sorting
from nightmail.engine.attempt import Attempt
from nightmail.engine.claiming import Claiming
from nightmail.engine.finished import Finished
from nightmail.engine.leases import Keeper
from nightmail.engine.pausing import Pausing
from nightmail.engine.presence import Presence
from nightmail.engine.result import Result
from nightmail.engine.retry_loop import RetryLoop, Step, at_once, happens_before
from nightmail.engine.run import Run
from nightmail.engine.settling import Settling
from nightmail.engine.shutdown import Stopping, ends_by
from nightmail.engine.stop_requests import StopRequests
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Reason, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.memory import publishing
from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.controls import Controls
from nightmail.stores.memory.data import MemoryData
from nightmail.stores.memory.queue import Queue
from nightmail.stores.memory.rows import Row


@dataclass(frozen=True, slots=True)
class Breakage:
    """A way to break things, and the rules that notice it."""

    name: str
    broken: Callable[[], AbstractContextManager[object]]
    noticed_by: frozenset[str]
    first: int
    """Where to begin: a little before a seed that notices it, for those that few histories notice."""


def _patched(where: object, name: str, instead: object) -> Callable[[], AbstractContextManager[object]]:
    return lambda: patch.object(where, name, instead)


# ── the engine ─────────────────────────────────────────────────────────────────────────────────────────────


async def _renews_nothing(_keeper: Keeper, _extend: object) -> bool:
    return True


async def _forgets_unsent_outcomes(self: Settling) -> None:
    """What got no answer counts as written."""
    batch = list(self._finished)
    try:
        await self._run.store.settle(batch)
    finally:
        self._finished.drop_first(len(batch))
        self._run.leases.drop(each.delivery for each in batch)
        self._run.room_grown.set()


async def _runs_again_what_got_no_answer(self: Settling) -> None:
    """What got no answer counts as not run."""
    batch = list(self._finished)
    try:
        await self._run.store.settle(batch)
    except Exception:
        self._run.in_flight.take([each.delivery for each in batch])
        raise
    finally:
        self._finished.drop_first(len(batch))
        self._run.room_grown.set()


def _hands_back_as_a_failure(self: Run, deliveries: Iterable[Delivery]) -> None:
    for delivery in deliveries:
        self.finished.put(Settlement(delivery, Retry()))


async def _recalls_nothing(self: Claiming) -> None:
    self._leases.unconfirmed = None


async def _does_not_wait(_finished: Finished) -> None:
    return


def _looks_only_when_woken(sent: float, next_in: timedelta | None, _interval: timedelta) -> float:
    return sent + (1e6 if next_in is None else next_in.total_seconds())


async def _calls_interrupted_runs_done(
    _attempt: Attempt, slot: Any, _raised: BaseException | None = None
) -> None:
    for result in slot.results.values():
        result.decision, result.error = Done(), None


async def _calls_a_shutdown_a_failure(
    _attempt: Attempt, slot: Any, raised: BaseException | None = None
) -> None:
    for result in slot.results.values():
        result.error = result.error or RuntimeError(repr(raised))


_settlement: Final = Attempt.settlement


def _settles_what_was_acked(
    self: Attempt, delivery: Delivery, result: Result, batch: Sequence[Delivery] = ()
) -> Settlement | None:
    if result.acked_in_transaction and result.error is not None:
        # It was acknowledged, so it must be done: but its transaction was rolled back.
        return Settlement(delivery, Done(), repeated=True)
    return _settlement(self, delivery, result, batch)


_skip_outcome: Final = Attempt.skip_outcome


def _never_gives_up(self: Attempt, delivery: Delivery) -> Outcome | None:
    outcome = _skip_outcome(self, delivery)
    return None if isinstance(outcome, Dead) and outcome.reason == Reason.MAX_DELIVERIES else outcome


def _runs_what_was_superseded(self: Attempt, delivery: Delivery) -> Outcome | None:
    return Dead(Reason.REJECTED, ran=False) if delivery.superseded else _skip_outcome(self, delivery)


_claim: Final = Claiming._claim


async def _counts_the_lease_from_when_the_claim_was_sent(self: Claiming) -> None:
    sent = time.monotonic()
    try:
        await _claim(self)
    except Exception:
        if self._leases.unconfirmed is not None:
            self._leases.unconfirmed = (
                self._leases.unconfirmed[0],
                sent + self._run.settings.lease.total_seconds(),
            )
        raise


async def _keeps_its_first_deadline(self: Stopping, waiting: Awaitable[Any]) -> bool:
    return await ends_by(self.ends, waiting)


async def _gives_up_on_an_error(
    _loop: RetryLoop, step: Step, *, when: Step = at_once, until: asyncio.Event, once: bool = False
) -> None:
    while not until.is_set() and await happens_before(when(), until):
        await step()
        if once:
            return


async def _does_not_look(_pausing: Pausing) -> None:
    return


def _resumes_after_every_probe(self: Pausing, delivery: Delivery, _result: Result, _settled: object) -> None:
    if delivery in self._run.probes and self._control is not None:
        self._run.probes.discard(delivery)
        self._begin(delivery.queue, self._resume(self._control, delivery.queue))


_ended: Final = Pausing.ended


def _probes_again_after_every_probe(self: Pausing, delivery: Delivery, result: Result, settled: Any) -> None:
    if delivery in self._run.probes:
        self.did_not_run(delivery)
    _ended(self, delivery, result, settled)


def _keeps_to_itself_that_a_probe_did_not_run(_pausing: Pausing, _probe: Delivery) -> None:
    return


def _does_not_hear(_requests: StopRequests, _delivery: Delivery) -> None:
    return


async def _leaves_without_a_word(*_given: object) -> None:
    return


# ── the store ──────────────────────────────────────────────────────────────────────────────────────────────


def _any_token_will_do(self: MemoryData, delivery: Delivery) -> Row | WriteResult:
    row = self.tables.queue(delivery.queue).rows.get(delivery.id)
    return WriteResult.LOST if row is None or row.token is None else row


_row_lease: Final = Row.lease


def _leases_end_at_once(self: Row, token: Any, until: datetime, now: datetime) -> None:
    _row_lease(self, token, now + (until - now) / 4, now)


def _counts_no_delivery(self: Row, token: Any, until: datetime, now: datetime) -> None:
    _row_lease(self, token, until, now)
    self.deliveries = 1


_look: Final = Queue.look


def _looks_ahead(self: Queue, now: datetime) -> None:
    _look(self, now + timedelta(seconds=0.2))


def _knows_no_pause(
    _controls: Controls, queues: Iterable[str], _now: datetime
) -> tuple[list[str], list[str]]:
    return list(queues), []


def _buries_without_a_letter(self: Changes, row: Row, *_why: Any, **_options: Any) -> None:
    self.remove(row)


@contextmanager
def _keys_without_lines() -> Iterator[None]:
    def place(self: Any, row: Row) -> None:
        if row.due_at > self._looked_at:
            self._scheduled.put(row.id, row.due_at)
        else:
            self._ready[row.priority].put(row.id, row.due_at)

    def lift(self: Any, row: Row) -> None:
        for agenda in (self._scheduled, self._running, self._ready[row.priority]):
            agenda.drop(row.id)

    with patch.object(Queue, "_place_unleased", place), patch.object(Queue, "_lift", lift):
        yield


def _breakage(
    name: str, broken: Callable[[], AbstractContextManager[object]], *noticed_by: str, first: int = 0
) -> Breakage:
    return Breakage(name, broken, frozenset(noticed_by), first)


DUPLICATE: Final = "no_needless_duplicate"

BREAKAGES: Final = (
    _breakage("the keeper renews nothing", _patched(Keeper, "renew", _renews_nothing), DUPLICATE),
    _breakage(
        "an outcome without an answer is forgotten",
        _patched(Settling, "_settle", _forgets_unsent_outcomes),
        DUPLICATE,
        "stops_in_time",
        first=75,
    ),
    _breakage(
        "an outcome without an answer is run again",
        _patched(Settling, "_settle", _runs_again_what_got_no_answer),
        "runs_once",
        "right_outcome",
        DUPLICATE,
    ),
    _breakage(
        "a hand-back burns an attempt",
        _patched(Run, "hand_back", _hands_back_as_a_failure),
        "right_outcome",
    ),
    _breakage(
        "a claim without an answer is forgotten",
        _patched(Claiming, "recall", _recalls_nothing),
        DUPLICATE,
        "stops_in_time",
    ),
    _breakage(
        "a claim that was carried out late is not recalled",
        _patched(Claiming, "_claim", _counts_the_lease_from_when_the_claim_was_sent),
        DUPLICATE,
        "stops_in_time",
        first=295,
    ),
    _breakage(
        "a stop does not wait for the last writes",
        _patched(Finished, "wait_none", _does_not_wait),
        "stops_in_time",
        first=40,
    ),
    _breakage(
        "a stop has no deadline",
        _patched(Stopping, "grace_ends", property(lambda self: self._grace_ends + 30.0)),
        "stops_in_time",
        first=435,
    ),
    _breakage(
        "a stop that is cancelled waits for a claim as long as before",
        _patched(Stopping, "ends_in_time", _keeps_its_first_deadline),
        "stops_in_time",
        first=395,
    ),
    _breakage(
        "only a wake-up makes a worker look",
        _patched(claiming, "next_look", _looks_only_when_woken),
        "delivered",
        first=45,
    ),
    _breakage(
        "no message is quarantined",
        _patched(sorting, "is_quarantined", lambda _: False),
        "poison_alone",
        first=30,
    ),
    _breakage(
        "no message is given up for killing its process",
        _patched(Attempt, "skip_outcome", _never_gives_up),
        "poison_alone",
    ),
    _breakage(
        "what was superseded becomes a dead letter",
        _patched(Attempt, "skip_outcome", _runs_what_was_superseded),
        "right_outcome",
    ),
    _breakage(
        "an interrupted or failed run is done",
        _patched(Attempt, "_explain", _calls_interrupted_runs_done),
        "right_outcome",
    ),
    _breakage(
        "a shutdown is a failure of what runs",
        _patched(Attempt, "_explain", _calls_a_shutdown_a_failure),
        "right_outcome",
    ),
    _breakage(
        "an ack that was rolled back is done",
        _patched(Attempt, "settlement", _settles_what_was_acked),
        "right_outcome",
    ),
    _breakage(
        "an error of the store ends the worker",
        _patched(RetryLoop, "repeat", _gives_up_on_an_error),
        "no_complaints",
        DUPLICATE,
    ),
    _breakage(
        "what was fetched ahead starts although it is paused",
        _patched(Pausing, "_hand_back_paused", _does_not_look),
        "starts_nothing_paused",
        first=845,
    ),
    _breakage(
        "a probe that failed ends the pause",
        _patched(Pausing, "ended", _resumes_after_every_probe),
        "resumes_after_success",
    ),
    _breakage(
        "every probe makes room for the next one",
        _patched(Pausing, "ended", _probes_again_after_every_probe),
        "probes_again_unheard",
    ),
    _breakage(
        "a probe that did not run is not made up for",
        _patched(Pausing, "did_not_run", _keeps_to_itself_that_a_probe_did_not_run),
        "delivered",
        first=374_804,
    ),
    _breakage(
        "a stop is not carried out",
        _patched(StopRequests, "add", _does_not_hear),
        "stops_when_told",
        first=120,
    ),
    _breakage(
        "a stopped message is retried",
        _patched(attempt, "stopped_by", lambda _who: Retry()),
        "right_outcome",
    ),
    _breakage(
        "a process that stops does not sign off",
        _patched(Presence, "_sign_off", _leaves_without_a_word),
        "signs_off",
    ),
    _breakage(
        "a pause holds nothing back", _patched(Controls, "open_queues", _knows_no_pause), "obeys_pauses"
    ),
    _breakage("a settlement needs no lease", _patched(MemoryData, "leased", _any_token_will_do), "fenced"),
    _breakage("leases end early", _patched(Row, "lease", _leases_end_at_once), "one_lease"),
    _breakage("deliveries are not counted", _patched(Row, "lease", _counts_no_delivery), "counters"),
    _breakage("messages are due early", _patched(Queue, "look", _looks_ahead), "never_early"),
    _breakage("ordering keys mean nothing", _keys_without_lines, "in_order"),
    _breakage("timer ids are never taken", _patched(publishing, "_taken", lambda *_: False), "timer_ids"),
    _breakage(
        "the dead leave no letter", _patched(Changes, "bury", _buries_without_a_letter), "nothing_lost"
    ),
)
