"""One handler run, and the outcome of its deliveries. Nothing unknown ever ends in `Done`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from nightmail.engine.context import InContext
from nightmail.engine.current import enter
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.slot import HandlerSlot
from nightmail.errors import HandlerDied, LeaseLost
from nightmail.message import DeadDelivery, Delivery
from nightmail.observe import Observer
from nightmail.outcome import OUTCOMES, Dead, Done, Outcome, Reason, Release, Retry
from nightmail.store import Settlement, Source

Handler: TypeAlias = Callable[[Delivery], Awaitable[Outcome | None]]
"""What a worker calls with each delivery. `None` is `Done`; what it raises is for the retry policy."""

BatchHandler: TypeAlias = Callable[
    [Sequence[Delivery]], Awaitable[Sequence[Outcome | Exception | None] | None]
]
"""What a worker calls with several at once.

It answers for each in order: an outcome, `None` for `Done`, or an exception for the retry policy. `None` alone means
that all are done; what it raises applies to all.
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


class Interrupted(Exception):
    """The shutdown cancelled the handler. Never leaves this module."""


class Attempt:
    """Runs the handler once and says how it ended."""

    def __init__(
        self,
        source: Source,
        handler: Handler | Batched,
        settings: WorkerSettings,
        observer: Observer,
    ) -> None:
        self._source = source
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
        """What to write after one handler run, in this task; `None` when there is nothing to write.

        That is so when the lease was lost, and when the handler acknowledged in a transaction of its own.
        """
        context = copy_context()
        context.run(enter, self._source, slot, delivery)
        self._observer.started(delivery)
        error: Exception | None = None  # None when cancelled: we know the cause better.
        try:
            result = await InContext(context, self._handler(delivery))
            return self._ended(delivery, _DONE if result is None else checked(result), slot)
        except asyncio.CancelledError:
            pass
        except Exception as raised:  # noqa: BLE001 - the policy decides what any error means
            error = raised
        if isinstance(error, LeaseLost) and is_own(error, delivery):
            self._observer.lease_lost(delivery)
            return None
        cause = await self._cause(error, slot)
        if isinstance(cause, HandlerDied):
            self._observer.failed(delivery, cause)
            return None  # As if we had died with it: redelivered, and counted, when its lease ends.
        return self._ended(delivery, self._failed(delivery, cause), slot)

    async def many(self, batch: Sequence[Delivery], slot: HandlerSlot) -> list[Settlement]:
        """What to write after one handler run with all of these."""
        context = copy_context()
        context.run(enter, self._source, slot, batch[0])
        for delivery in batch:
            self._observer.started(delivery)
        answers: Sequence[Outcome | Exception | None]
        try:
            answers = _one_each(await InContext(context, self._batch_handler(batch)), len(batch))
        except asyncio.CancelledError:
            answers = [await self._cause(None, slot)] * len(batch)
        except LeaseLost as lost:
            # The batch was all or nothing: the others did not fail and may be redelivered at once.
            named = any(is_own(lost, each) for each in batch)
            answers = [Release() if named and not is_own(lost, each) else lost for each in batch]
        except Exception as raised:  # noqa: BLE001 - the policy decides what any error means
            answers = [await self._cause(raised, slot)] * len(batch)
        else:
            if slot.task.cancelling():
                answers = [
                    await self._cause(answer, slot) if isinstance(answer, Exception) else answer
                    for answer in answers
                ]
        settlements = [
            Settlement(delivery, _DONE)
            if answer is None and not slot.promised
            else self._answered(delivery, answer, slot)
            for delivery, answer in zip(batch, answers, strict=True)
        ]
        return [settlement for settlement in settlements if settlement is not None]

    def _answered(
        self, delivery: Delivery, answer: Outcome | Exception | None, slot: HandlerSlot
    ) -> Settlement | None:
        if isinstance(answer, LeaseLost) and is_own(answer, delivery):
            self._observer.lease_lost(delivery)
            return None
        if isinstance(answer, HandlerDied):
            self._observer.failed(delivery, answer)
            return None
        if isinstance(answer, Exception):
            return self._ended(delivery, self._failed(delivery, answer), slot)
        return self._ended(delivery, _DONE if answer is None else checked(answer), slot)

    def _ended(self, delivery: Delivery, outcome: Outcome, slot: HandlerSlot) -> Settlement | None:
        if delivery not in slot.promised:
            return Settlement(delivery, outcome)
        if isinstance(outcome, Done):
            self._observer.promised(delivery)
            return None
        # Its transaction may have committed all the same: then a missing message is no lost lease.
        return Settlement(delivery, outcome, repeated=True)

    async def _cause(self, error: Exception | None, slot: HandlerSlot) -> Exception:
        """Why it failed. If we cancelled it, that is the cause, whatever the handler or a driver raised instead."""
        if await slot.was_interrupted():
            return self._timed_out(error) if slot.overdue else Interrupted()
        return error or RuntimeError(CANCELLED_ITSELF)

    def _failed(self, delivery: Delivery, error: Exception) -> Outcome:
        if isinstance(error, Interrupted):
            return Release()  # The shutdown interrupted it: no failure.
        self._observer.failed(delivery, error)
        return decide(self._settings, self._observer, delivery, error)

    def _timed_out(self, cause: Exception | None) -> TimeoutError:
        seconds = self._settings.handler_timeout.total_seconds()
        error = TimeoutError(f"the handler ran longer than {seconds:g} seconds")
        error.__cause__ = cause
        return error


def decide(
    settings: WorkerSettings, observer: Observer, delivery: Delivery, error: Exception | None
) -> Outcome:
    """What the retry policy makes of a failed run."""
    try:
        # Unlike a handler's, a policy's `None` is a forgotten branch.
        outcome = checked(settings.retry(delivery, error))
    except Exception as broken:  # noqa: BLE001 - a broken policy must not decide by crashing
        observer.policy_failed(delivery, broken)
        return Dead(Reason.POLICY_ERROR, settings.described(broken))
    if isinstance(outcome, Dead | Retry) and outcome.error is None and error is not None:
        return replace(outcome, error=settings.described(error))
    return outcome


def is_own(lost: LeaseLost, delivery: Delivery) -> bool:
    """Whether the lost lease is this delivery's. An error that names no ids may be about any, so about this one too."""
    return not lost.ids or delivery.id in lost.ids


def checked(outcome: Outcome) -> Outcome:
    """The outcome that user code returned; raises if it is not one."""
    if isinstance(outcome, OUTCOMES):
        return outcome
    raise TypeError(f"expected an outcome, got {type(outcome).__name__}")


def this_task() -> asyncio.Task[Any]:
    """The task that runs this code."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    return task


def _one_each(
    answers: Sequence[Outcome | Exception | None] | None, count: int
) -> Sequence[Outcome | Exception | None]:
    """The answers of a batch handler; raises unless there is one for each."""
    if answers is None:
        return [None] * count
    if len(answers) != count:
        raise TypeError(f"a batch of {count} needs as many answers, got {len(answers)}")
    for answer in answers:
        if answer is not None and not isinstance(answer, Exception):
            checked(answer)
    return answers


def _begun(delivery: Delivery) -> datetime:
    """The earliest moment at which an attempt may have begun."""
    return delivery.died_at if isinstance(delivery, DeadDelivery) else delivery.published_at


async def _takes_batches(_delivery: Delivery) -> Outcome | None:
    raise TypeError("this handler takes batches")


async def _takes_one(_batch: Sequence[Delivery]) -> Sequence[Outcome | Exception | None] | None:
    raise TypeError("this handler takes one delivery at a time")
