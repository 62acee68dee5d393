"""What happens in the engine, one method per event. Logs, metrics and tests all listen here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from nightmail.controls import PauseCause, QueueStatus
from nightmail.describing import in_words, one_line
from nightmail.json_log import about
from nightmail.message import DeadDelivery, Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Retry
from nightmail.store import Settlement

_log: Final = logging.getLogger("nightmail")


class Log(Protocol):
    """Writes one line: `logging.Logger.log`, or what an application has instead."""

    def __call__(self, level: int, message: str, /, *, extra: Mapping[str, object] | None = None) -> None: ...


class Observer:
    """Hears everything and does nothing: override what you care about.

    Called on the worker's event loop, between two steps: return quickly, and do not raise.
    """

    def published(self, queue: str, count: int) -> None:
        """`count` messages were stored in this queue, perhaps in a caller's transaction, which may not commit.

        Called on the thread that publishes.
        """

    def claimed(self, deliveries: Sequence[Delivery]) -> None:
        """These were leased to us."""

    def started(self, delivery: Delivery) -> None:
        """Its handler starts now."""

    def ended(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """The handler of these, one or a batch, has ended after so long; however it ended."""

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        """Its handler raised, or ran out of time."""

    def overruled(self, delivery: Delivery, error: str | None, outcome: Outcome) -> None:
        """Its handler raised `error`, but its outcome was decided already: by itself, or by the ACK policy."""

    def overdue(self, delivery: Delivery, seconds: float) -> None:
        """Its thread has run for so long, and does not end although told to: the message stays leased until it does.

        Called once for each run.
        """

    def policy_failed(self, delivery: Delivery, error: Exception) -> None:
        """The retry policy itself raised: the message goes to the dead letters."""

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """The store has written how these ended."""

    def acked_in_transaction(self, delivery: Delivery) -> None:
        """Its handler has returned and acknowledged it in its own transaction: there is nothing to write."""

    def superseded(self, delivery: Delivery) -> None:
        """A newer message took its timer id: dropped without running."""

    def lease_lost(self, delivery: Delivery) -> None:
        """Another worker has it, or it is gone: whatever we did with it was not written."""

    def uncertain(self, settlement: Settlement) -> None:
        """The store's first answer was lost and the message is gone now: whether by us cannot be known."""

    def stopped(self, delivery: Delivery, by: str) -> None:
        """An operator wants it stopped: its handler is told to end, or will not start."""

    def paused(
        self, queue: str, cause: PauseCause, by: str, delay: timedelta | None, reason: str | None
    ) -> None:
        """This process paused a queue, for so long, or (`None`) until something else ends the pause."""

    def resumed(self, queue: str, by: str) -> None:
        """This process resumed a queue: for an operator, or because a probe went well."""

    def breaker_opened(self, queue: str, failures: int, seconds: float, pause: timedelta) -> None:
        """So many handlers of this queue failed in so many seconds: the queue is paused for so long."""

    def woken(self) -> None:
        """A wake-up cut a wait short."""

    def store_unavailable(self, error: Exception, retry_in: timedelta) -> None:
        """The store did not answer; the worker tries again."""

    def store_recovered(self) -> None:
        """The store answers again."""

    def drained(self, left: int) -> None:
        """Stopped. `left` messages could not be settled in time and come back when their leases end."""

    def log_through(self, log: Log) -> None:
        """Write to this log, the application's, unless you were given another."""

    def counted(self, queues: Sequence[QueueStatus] | None) -> None:
        """How each queue stands that has anything in it, is paused or is consumed; `None` if it could not be read."""


class Observers(Observer):
    """Passes every event on to each of these, in order.

    One that raises does not keep the others from being called. That is logged once per observer and event: a broken
    one would otherwise flood the log at the rate of the messages.
    """

    def __init__(self, *observers: Observer) -> None:
        self.logs: bool = any(
            each.logs if isinstance(each, Observers) else isinstance(each, LoggingObserver)
            for each in observers
        )
        """Whether one of them logs."""
        for event, unheard in vars(Observer).items():
            if event.startswith("_"):
                continue
            # An observer that does not override an event costs no call.
            hear = (getattr(observer, event) for observer in observers)
            caring = [each for each in hear if getattr(each, "__func__", None) is not unheard]
            setattr(self, event, _to_each(event, caring))


class LoggingObserver(Observer):
    """Logs what an operator should know: one line for each event. Never a body, a header or a token.

    A failure is logged once its outcome is written. An outage is logged when it begins and when it ends.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log: Log = (logger or _log).log
        self._is_given = logger is not None
        self._is_down = False

    def log_through(self, log: Log) -> None:
        if not self._is_given:
            self._log = log

    def claimed(self, deliveries: Sequence[Delivery]) -> None:
        if self._is_down:
            self.store_recovered()

    def overruled(self, delivery: Delivery, error: str | None, outcome: Outcome) -> None:
        ends = {Done: "done", Retry: "repeated", Postpone: "postponed"}.get(type(outcome), "handed back")
        failed = "" if error is None else f": {one_line(error)}"
        self._say(
            logging.WARNING,
            delivery,
            "overruled",
            f"attempt {delivery.attempt} failed{failed}; {ends} all the same",
            error=error,
            next=_name(outcome),
        )

    def overdue(self, delivery: Delivery, seconds: float) -> None:
        self._say(
            logging.WARNING,
            delivery,
            "overdue",
            f"overdue: its thread has run for {seconds:.1f} s and does not end; "
            "no other worker gets it while that thread, or this process, lives",
            seconds=round(seconds, 3),
            next="stays_leased",
        )

    def policy_failed(self, delivery: Delivery, error: Exception) -> None:
        kind = type(error).__name__
        said = f"its retry policy raised {kind}"
        self._say(logging.ERROR, delivery, "policy_failed", said, error=kind, next="dead_letter")

    def settled(self, settlements: Sequence[Settlement]) -> None:
        if self._is_down:
            self.store_recovered()
        for settlement in settlements:
            outcome = settlement.outcome
            # Most are `Done`: they cost one check.
            if isinstance(outcome, Retry):
                self._say_retried(settlement.delivery, outcome)
            elif isinstance(outcome, Dead):
                self._say_given_up(settlement.delivery, outcome)

    def superseded(self, delivery: Delivery) -> None:
        self._say(logging.INFO, delivery, "superseded", "replaced while it ran: dropped", next="dropped")

    def lease_lost(self, delivery: Delivery) -> None:
        self._say(
            logging.WARNING,
            delivery,
            "lease_lost",
            f"lease lost on delivery {delivery.deliveries}; another worker has it, or it is gone",
            deliveries=delivery.deliveries,
        )

    def uncertain(self, settlement: Settlement) -> None:
        self._say(
            logging.WARNING,
            settlement.delivery,
            "uncertain",
            f"gone; the store's answer to our {type(settlement.outcome).__name__} was lost",
            outcome=_name(settlement.outcome),
        )

    def paused(
        self, queue: str, cause: PauseCause, by: str, delay: timedelta | None, reason: str | None
    ) -> None:
        if cause is not PauseCause.BREAKER:
            how_long = "" if delay is None else f" for {_span(delay)}"
            why = "" if reason is None else f": {one_line(reason)}"
            self._tell(
                logging.INFO,
                "paused",
                f"queue {queue} paused{how_long} by {by}{why}",
                queue=queue,
                by=by,
                reason=reason,
                next=None if delay is None else "resume" if cause is PauseCause.OPERATOR else "probe",
                next_at=_after(delay),
            )

    def resumed(self, queue: str, by: str) -> None:
        self._tell(logging.INFO, "resumed", f"queue {queue} resumed by {by}", queue=queue, by=by)

    def breaker_opened(self, queue: str, failures: int, seconds: float, pause: timedelta) -> None:
        until = (datetime.now(UTC) + pause).strftime("%H:%M:%S UTC")
        self._tell(
            logging.WARNING,
            "breaker_opened",
            f"queue {queue} paused by its breaker for {_span(pause)}, until {until}: "
            f"{failures} failures in {seconds:.3g} s",
            queue=queue,
            failures=failures,
            seconds=round(seconds, 3),
            next="probe",
            next_at=_after(pause),
        )

    def store_unavailable(self, error: Exception, retry_in: timedelta) -> None:
        if not self._is_down:
            self._is_down = True
            said = in_words(error)
            self._tell(
                logging.WARNING,
                "store_unavailable",
                f"the store is unavailable: {said}; trying again in {_span(retry_in)}",
                error=said,
                next="try_again",
                next_at=_after(retry_in),
            )

    def store_recovered(self) -> None:
        if self._is_down:
            self._is_down = False
            self._tell(logging.INFO, "store_recovered", "the store answers again")

    def drained(self, left: int) -> None:
        if left:
            self._tell(
                logging.WARNING,
                "drained",
                f"stopped with {left} messages unsettled; they come back when their leases end",
                left=left,
            )

    def _say_retried(self, delivery: Delivery, outcome: Retry) -> None:
        ended = "asked to be repeated" if outcome.error is None else f"failed: {one_line(outcome.error)}"
        self._say(
            logging.INFO if outcome.error is None else logging.WARNING,
            delivery,
            "retried",
            f"attempt {delivery.attempt} {ended}; next attempt {_in(outcome.after)}",
            error=outcome.error,
            next="retry",
            next_at=_after(outcome.after),
        )

    def _say_given_up(self, delivery: Delivery, outcome: Dead) -> None:
        if outcome.reason == Reason.STOPPED and outcome.error is not None:
            when = f" during attempt {delivery.attempt}" if outcome.ran else " before it ran"
            level, what = logging.WARNING, f"{one_line(outcome.error)}{when}; a dead letter now"
        else:
            ran = f"attempt {delivery.attempt}" if outcome.ran else "not run"
            failed = "" if outcome.error is None else f" failed: {one_line(outcome.error)}"
            now = "left with the dead letters" if isinstance(delivery, DeadDelivery) else "a dead letter now"
            level, what = logging.ERROR, f"{ran}{failed}; {now}: {one_line(outcome.reason)}"
        facts = {"error": outcome.error, "reason": outcome.reason, "next": "dead_letter"}
        self._say(level, delivery, "died", what, **facts)

    def _say(self, level: int, delivery: Delivery, event: str, what: str, **facts: object) -> None:
        kind = "dead letter" if isinstance(delivery, DeadDelivery) else "message"
        line = f"{kind} {delivery.id} of {delivery.queue}: {what}"
        self._tell(level, event, line, **about(delivery), **facts)

    def _tell(self, level: int, event: str, line: str, **facts: object) -> None:
        """One line, with what it says as fields of their own (`json_log.FIELDS`)."""
        extra = {
            name: one_line(fact) if isinstance(fact, str) else fact
            for name, fact in facts.items()
            if fact is not None
        }
        self._log(level, line, extra={"event": event, **extra})


def _name(outcome: Outcome) -> str:
    return type(outcome).__name__.lower()


def _after(delay: timedelta | None) -> datetime | None:
    """When that is, by our own clock."""
    return None if delay is None else datetime.now(UTC) + delay


def _in(after: timedelta) -> str:
    return f"in {_span(after)}" if after > timedelta(0) else "at once"


def _span(duration: timedelta) -> str:
    """A duration in human-readable form."""
    seconds = duration.total_seconds()
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _to_each(event: str, observers: Iterable[Callable[..., None]]) -> Callable[..., None]:
    hearing = [_guarded(event, each) for each in observers]
    if len(hearing) == 1:
        return hearing[0]

    def tell(*what: Any) -> None:
        for hear in hearing:
            hear(*what)

    return tell


def _guarded(event: str, hear: Callable[..., None]) -> Callable[..., None]:
    """The same, but what it raises is logged, the first time, and not propagated."""
    said = False

    def heard(*what: Any) -> None:
        nonlocal said
        try:
            hear(*what)
        except Exception as error:  # noqa: BLE001 - an observer must not disturb the worker
            if not said:
                said = True
                # Only its type: the text may quote the message.
                _log.error(
                    "%s raised %s when told of %r; it is told on, but this is not logged again",
                    type(getattr(hear, "__self__", hear)).__name__, type(error).__name__, event,
                )  # fmt: skip

    return heard
