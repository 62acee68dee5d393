"""One delivery, one handler run, one outcome. Nothing unknown ever ends in `Done`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from nightmail.current import enter
from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.observe import Observer
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Release, Retry
from nightmail.run import Run
from nightmail.settings import WorkerSettings
from nightmail.store import Store

Handler: TypeAlias = Callable[[Delivery], Awaitable[Outcome | None]]
"""What a worker calls with each delivery. `None` is `Done`; what it raises is for the retry policy."""

# An error, and not a hand-back: one that cancels itself would come round at full speed, for ever.
CANCELLED_ITSELF: Final = "the handler raised CancelledError by itself"
_OUTCOMES: Final = (Done, Retry, Postpone, Dead, Release)


class Attempt:
    """Runs the handler once and says how the delivery ended."""

    def __init__(
        self,
        store: Store,
        handler: Handler,
        settings: WorkerSettings,
        observer: Observer,
        *,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._store = store
        self._handler = handler
        self._settings = settings
        self._observer = observer
        self._is_stopping = is_stopping
        self._give_up = settings.give_up_after

    def without_running(self, delivery: Delivery) -> Outcome | None:
        """How this ends without its handler, if it does."""
        if delivery.superseded:
            self._observer.superseded(delivery)
            return Done()
        if delivery.deliveries > self._settings.max_deliveries:
            return Dead(Reason.MAX_DELIVERIES, ran=False)
        if delivery.expires_at is not None and delivery.expires_at <= delivery.claimed_at:
            return Dead(Reason.EXPIRED, ran=False)
        if self._give_up is not None and delivery.claimed_at - delivery.published_at >= self._give_up:
            return Dead(Reason.EXPIRED, ran=False)
        return None

    async def __call__(self, delivery: Delivery, run: Run) -> Outcome | None:
        """The outcome of one handler run, in this task; `None` when the lease was lost: there is nothing to write."""
        enter(self._store, run, delivery)
        self._observer.started(delivery)
        error: Exception
        try:
            result = await self._handler(delivery)
            return Done() if result is None else checked(result)
        except LeaseLost:
            self._observer.lease_lost(delivery)
            return None
        except asyncio.CancelledError:
            error = self._timed_out() if run.overdue else RuntimeError(CANCELLED_ITSELF)
        except Exception as raised:  # noqa: BLE001 - the policy decides what any error means
            error = raised
        finally:
            if run.overdue:
                run.task.uncancel()
        if self._is_stopping() and run.task.cancelling():
            # The shutdown interrupted it, whatever a driver made of that: nobody's failure.
            return Release()
        self._observer.failed(delivery, error)
        return self.decide(delivery, error)

    def _timed_out(self) -> TimeoutError:
        return TimeoutError(
            f"the handler ran longer than {self._settings.handler_timeout.total_seconds():g} seconds"
        )

    def decide(self, delivery: Delivery, error: Exception | None) -> Outcome:
        """What the retry policy makes of a failed run."""
        try:
            # Not as for a handler: of a policy, `None` is a branch that somebody forgot.
            outcome = checked(self._settings.retry(delivery, error))
        except Exception as broken:  # noqa: BLE001 - a broken policy must not decide by crashing
            self._observer.policy_failed(delivery, broken)
            return Dead(Reason.POLICY_ERROR, self._described(broken))
        if isinstance(outcome, Dead) and outcome.error is None and error is not None:
            return replace(outcome, error=self._described(error))
        return outcome

    def _described(self, error: Exception) -> str | None:
        try:
            return self._settings.describe_error(error)
        except Exception as broken:  # noqa: BLE001 - an error whose repr raises still has a name
            return f"{type(error).__name__} (describing it raised {type(broken).__name__})"


def checked(outcome: Outcome) -> Outcome:
    """An outcome that somebody else's code gave, if it is one."""
    if isinstance(outcome, _OUTCOMES):
        return outcome
    raise TypeError(f"expected an outcome, got {type(outcome).__name__}")


def this_task() -> asyncio.Task[Any]:
    """The task that runs this code."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    return task
