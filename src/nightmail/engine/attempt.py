"""One handler run, and what to write for its results. Nothing unknown ever ends in `Done`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from nightmail.controls import PauseRequested
from nightmail.engine.context import InContext
from nightmail.engine.current import enter
from nightmail.engine.pausing import Pausing
from nightmail.engine.result import Nacked, PausesQueue, Result
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.slot import HandlerSlot
from nightmail.engine.stop_requests import stopped_by
from nightmail.errors import HandlerDied, LeaseLost, NoDecision
from nightmail.message import DeadDelivery, Delivery
from nightmail.observe import Observer
from nightmail.outcome import OUTCOMES, Dead, Done, Outcome, Postpone, Reason, Release, Retry
from nightmail.store import Settlement, Source

Handler: TypeAlias = Callable[[Delivery], Awaitable[Outcome | Result | None]]
"""What a worker calls with each delivery. `None` is `Done`; what it raises is for the retry policy.

One that has set its `Result` itself returns that.
"""

Answers: TypeAlias = Sequence[Outcome | Exception | None]
BatchHandler: TypeAlias = Callable[[Sequence[Delivery]], Awaitable[Answers | dict[Delivery, Result] | None]]
"""What a worker calls with several at once.

It answers for each in order: an outcome, `None` for `Done`, or an exception for the retry policy. `None` alone means
that all are done; what it raises applies to all. One that has set their results itself returns those.
"""


@dataclass(frozen=True, slots=True)
class Batched:
    """A handler that takes up to `limit` deliveries at once. It never waits to fill a batch."""

    handler: BatchHandler
    limit: int = 100

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit must be at least 1, not {self.limit}")


# An error, not a hand-back: a handler that cancels itself would otherwise be retried at full speed, forever.
CANCELLED_ITSELF: Final = "the handler raised CancelledError by itself"
_DONE: Final = Done()


class Attempt:
    """Runs the handler once and says how it ended."""

    def __init__(
        self,
        source: Source,
        handler: Handler | Batched,
        settings: WorkerSettings,
        observer: Observer,
        pausing: Pausing | None = None,
    ) -> None:
        self._source = source
        self._pausing = pausing
        # One of the two is never called: a worker has handlers of one kind.
        self._handler = handler if not isinstance(handler, Batched) else _takes_batches
        self._batch_handler = handler.handler if isinstance(handler, Batched) else _takes_one
        self._settings = settings
        self._observer = observer
        self._give_up = settings.give_up_after

    def skip_outcome(self, delivery: Delivery) -> Outcome | None:
        """The outcome of a delivery whose handler must not run; `None` if it runs."""
        if delivery.superseded:
            self._observer.superseded(delivery)
            return Done()
        if delivery.deliveries > self._settings.max_deliveries:
            return Dead(Reason.MAX_DELIVERIES, ran=False)
        if delivery.expires_at is not None and delivery.expires_at <= delivery.claimed_at:
            return Dead(Reason.EXPIRED, ran=False)
        if self._give_up is not None and delivery.claimed_at - _begun(delivery) >= self._give_up:
            return Dead(Reason.EXPIRED, ran=False)
        return None

    async def one(self, delivery: Delivery, slot: HandlerSlot) -> Settlement | None:
        """What to write after one handler run, in this task; `None` when there is nothing to write."""
        context = copy_context()
        enter(context, self._source, slot)
        result = slot.results[delivery]
        self._observer.started(delivery)
        try:
            returned = await InContext(context, self._handler(delivery))
            if not isinstance(returned, Result):
                result.decide(_DONE if returned is None else checked(returned))
            if result.error is not None:
                await self._explain(slot)
        except (asyncio.CancelledError, Exception) as raised:  # noqa: BLE001 - the policy decides what an error means
            await self._explain(slot, raised)
        return self.settlement(delivery, result)

    async def many(self, batch: Sequence[Delivery], slot: HandlerSlot) -> list[Settlement]:
        """What to write after one handler run with all of these."""
        context = copy_context()
        enter(context, self._source, slot)
        results = slot.results
        for delivery in batch:
            self._observer.started(delivery)
        try:
            answers = await InContext(context, self._batch_handler(batch))
            if not isinstance(answers, dict):
                _read(answers, list(results.values()))
            await self._explain(slot)
        except (asyncio.CancelledError, Exception) as raised:  # noqa: BLE001 - the policy decides what an error means
            await self._explain(slot, raised)
        settlements = [self.settlement(delivery, result, batch) for delivery, result in results.items()]
        return [settlement for settlement in settlements if settlement is not None]

    async def _explain(self, slot: HandlerSlot, raised: BaseException | None = None) -> None:
        """Give each its error, or what its handler raised. If we cancelled it that is why, whatever was raised instead.

        An outcome that was decided before stands.
        """
        failures: dict[str, Exception] = {}
        for delivery, result in slot.results.items():
            error = result.error or raised
            if error is None or isinstance(result.decision, OUTCOMES):
                continue
            if isinstance(error, LeaseLost) and any(is_own(error, each) for each in slot.results):
                result.error = error
            elif isinstance(error, PauseRequested):
                result.decision, result.error = PausesQueue(error.retry_after, error.reason), None
            elif not await slot.was_interrupted():
                result.error = error if isinstance(error, Exception) else RuntimeError(CANCELLED_ITSELF)
                self._spare(delivery, result, slot, failures)
            elif slot.stopped:
                by = slot.stopped.get(delivery)
                result.decision, result.error = (Release() if by is None else stopped_by(by)), None
            elif slot.overdue:
                result.void(self._timed_out(error))
                self._spare(delivery, result, slot, failures)
            else:
                # The shutdown interrupted it: no failure.
                result.decision, result.error = Release(), None
        for queue, failure in failures.items():
            self._count(queue, failure, slot)

    def _spare(
        self, delivery: Delivery, result: Result, slot: HandlerSlot, failures: dict[str, Exception]
    ) -> None:
        """It has failed, which is no attempt if its queue is paused for such failures by now; else it is one more."""
        if self._pausing is None or result.error is None or isinstance(result.decision, PausesQueue):
            return
        spared = self._pausing.failed(delivery, result.error, slot.begun)
        if spared is None:
            # Once for a batch: its handler has failed once.
            failures[delivery.queue] = result.error
        else:
            result.decision = spared

    def _count(self, queue: str, failure: Exception, slot: HandlerSlot) -> None:
        if self._pausing is not None:
            # The store's clock, which a test may move.
            claimed = max(each.claimed_at.timestamp() for each in slot.results)
            self._pausing.count(queue, failure, claimed + time.monotonic() - slot.begun)

    def settlement(
        self, delivery: Delivery, result: Result, batch: Sequence[Delivery] = ()
    ) -> Settlement | None:
        """What to write for this result, the only place that reads one; `None` when there is nothing to write.

        That is so when the lease was lost, and when the handler acknowledged in a transaction of its own.
        """
        decision, error, acked = result.decision, result.error, result.acked_in_transaction
        if error is None and not acked and type(decision) is Done:
            return Settlement(delivery, decision)  # The common case.
        if isinstance(error, HandlerDied):
            self._observer.failed(delivery, error)
            return None  # As if we had died with it: redelivered, and counted, when its lease ends.
        if isinstance(error, LeaseLost) and is_own(error, delivery):
            self._observer.lease_lost(delivery)
            return None
        outcome: Outcome
        match decision:
            case _ if isinstance(error, LeaseLost) and any(is_own(error, each) for each in batch):
                # The batch was all or nothing: this one did not fail and may be redelivered at once.
                outcome = Release()
            case Dead(error=None) if error is not None and not isinstance(error, NoDecision):
                self._observer.failed(delivery, error)
                outcome = replace(decision, error=self._settings.described(error))
            case Done() | Retry() | Postpone() | Dead() | Release():
                if error is not None and not isinstance(decision, Dead):
                    self._observer.overruled(delivery, self._settings.described(error), decision)
                outcome = decision
            case None if acked and error is None:
                outcome = _DONE
            case None:
                outcome = self._retry(delivery, error or NoDecision())
            case Nacked():
                outcome = self._retry(delivery, error, decision.delay)
            case PausesQueue():
                if self._pausing is not None:
                    self._pausing.request(delivery.queue, decision.delay, decision.reason)
                outcome = Postpone(decision.delay)
        if acked and isinstance(outcome, Done):
            self._observer.acked_in_transaction(delivery)
            return None
        # What a transaction acknowledged may be gone, if that committed all the same: then it is no lost lease.
        return Settlement(delivery, outcome, repeated=acked)

    def _retry(self, delivery: Delivery, error: Exception | None, delay: timedelta | None = None) -> Outcome:
        """What the retry policy makes of a failed run, with the handler's `delay`; the only place that asks it."""
        if error is not None:
            self._observer.failed(delivery, error)
        try:
            # Unlike a handler's, a policy's `None` is a forgotten branch.
            outcome = checked(self._settings.retry(delivery, error))
        except Exception as broken:  # noqa: BLE001 - a broken policy must not decide by crashing
            self._observer.policy_failed(delivery, broken)
            return Dead(Reason.POLICY_ERROR, self._settings.described(broken))
        if isinstance(outcome, Dead | Retry) and outcome.error is None and error is not None:
            outcome = replace(outcome, error=self._settings.described(error))
        if isinstance(outcome, Retry) and delay is not None:
            outcome = replace(outcome, after=delay)
        return outcome

    def _timed_out(self, instead: BaseException) -> TimeoutError:
        seconds = self._settings.handler_timeout.total_seconds()
        error = TimeoutError(f"the handler ran longer than {seconds:g} seconds")
        error.__cause__ = instead if isinstance(instead, Exception) else None
        return error


def is_own(lost: LeaseLost, delivery: Delivery) -> bool:
    """Whether the lost lease is this delivery's. An error that names no ids may be about any, so about this one too."""
    return not lost.ids or delivery.id in lost.ids


def checked(outcome: Outcome) -> Outcome:
    """The outcome that user code returned; raises if it is not one."""
    if isinstance(outcome, OUTCOMES):
        return outcome
    raise TypeError(f"expected an outcome, got {type(outcome).__name__}")


def _read(answers: Answers | None, results: Sequence[Result]) -> None:
    """Note what a batch handler answered; raises unless there is a valid answer for each."""
    if answers is None:
        for result in results:
            result.decide(_DONE)
        return
    if len(answers) != len(results):
        raise TypeError(f"a batch of {len(results)} needs as many answers, got {len(answers)}")
    for answer in answers:
        if answer is not None and not isinstance(answer, Exception):
            checked(answer)
    for answer, result in zip(answers, results, strict=True):
        if isinstance(answer, Exception):
            result.error = answer
        else:
            result.decide(_DONE if answer is None else answer)


def _begun(delivery: Delivery) -> datetime:
    """The earliest moment at which an attempt may have begun."""
    return delivery.died_at if isinstance(delivery, DeadDelivery) else delivery.published_at


async def _takes_batches(_delivery: Delivery) -> Outcome | None:
    raise TypeError("this handler takes batches")


async def _takes_one(_batch: Sequence[Delivery]) -> Answers | None:
    raise TypeError("this handler takes one delivery at a time")
