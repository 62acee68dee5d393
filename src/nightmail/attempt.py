"""One delivery, one handler run, one outcome. Nothing unknown ever ends in `Done`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias

from nightmail import current
from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.observe import Observer
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Release, Retry
from nightmail.overtime import Overtime
from nightmail.settings import WorkerSettings
from nightmail.store import Store

Handler: TypeAlias = Callable[[Delivery], Awaitable[Outcome | None]]
"""What a worker calls with each delivery. `None` is `Done`; what it raises is for the retry policy."""


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
        self._overtime = Overtime(settings.handler_timeout.total_seconds())
        self._give_up = settings.give_up_after

    def close(self) -> None:
        """No handler will run any more."""
        self._overtime.close()

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

    async def __call__(self, delivery: Delivery, task: asyncio.Task[Any]) -> Outcome | None:
        """The outcome of one handler run, in this task; `None` when the lease was lost: there is nothing to write."""
        ended = await self._run(delivery, task)
        if not isinstance(ended, Exception):
            return ended
        if self._is_stopping() and task.cancelling():
            # The shutdown interrupted it, whatever a driver made of that: nobody's failure.
            return Release()
        return self._failed(delivery, ended)

    async def _run(self, delivery: Delivery, task: asyncio.Task[Any]) -> Outcome | Exception | None:
        entered = current.enter(self._store, delivery)
        self._observer.started(delivery)
        self._overtime.begin(task)
        try:
            result = await self._handler(delivery)
            return Done() if result is None else checked(result)
        except LeaseLost:
            self._observer.lease_lost(delivery)
            return None
        except asyncio.CancelledError:
            pass  # By whom is known only below.
        except Exception as error:  # noqa: BLE001 - the policy decides what any error means
            return error
        finally:
            entered.over = True
            if ran_over := self._overtime.end(task):
                task.uncancel()
        if ran_over:
            return TimeoutError(f"the handler ran longer than {self._overtime.limit:g} seconds")
        # An error, and not a hand-back: one that cancels itself would come round at full speed, for ever.
        return RuntimeError("the handler raised CancelledError by itself")

    def _failed(self, delivery: Delivery, error: Exception) -> Outcome:
        self._observer.failed(delivery, error)
        return self.decide(delivery, error)

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
    if isinstance(outcome, Done | Retry | Postpone | Dead | Release):
        return outcome
    raise TypeError(f"expected an outcome, got {type(outcome).__name__}")


def this_task() -> asyncio.Task[Any]:
    """The task that runs this code."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    return task
