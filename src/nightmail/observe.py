"""What happens in the engine, one method per event. Logs, metrics and tests all listen here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from nightmail.message import DeadDelivery, Delivery
from nightmail.outcome import Dead
from nightmail.records import QueueStats
from nightmail.store import Settlement

_log: Final = logging.getLogger("nightmail")


class Observer:
    """Hears everything and does nothing: override what you care about.

    Called on the worker's event loop, between two steps: return quickly, and do not raise.
    """

    def published(self, queue: str, count: int) -> None:
        """So many were stored in this queue, or in a caller's transaction: whether that commits, we are not told.

        Told on the thread that publishes, whichever that is.
        """

    def claimed(self, deliveries: Sequence[Delivery]) -> None:
        """These were leased to us."""

    def started(self, delivery: Delivery) -> None:
        """Its handler starts now."""

    def ended(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """The handler that had these, one or a batch, has ended after so long; however it ended."""

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        """Its handler raised, or ran out of time."""

    def policy_failed(self, delivery: Delivery, error: Exception) -> None:
        """The retry policy itself raised: the message goes to the dead letters."""

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """The store has written how these ended."""

    def promised(self, delivery: Delivery) -> None:
        """Its handler has returned and had acknowledged it in a transaction of its own: there is nothing to write."""

    def superseded(self, delivery: Delivery) -> None:
        """A newer message took its name: dropped unrun."""

    def lease_lost(self, delivery: Delivery) -> None:
        """Another worker has it, or it is gone: whatever we did with it was not written."""

    def uncertain(self, settlement: Settlement) -> None:
        """The store's first answer got lost and the message is gone now: nobody can tell whether by us."""

    def woken(self) -> None:
        """A wake-up cut a wait short."""

    def store_unavailable(self, error: Exception, retry_in: timedelta) -> None:
        """The store did not answer; the worker tries again."""

    def store_recovered(self) -> None:
        """The store answers again."""

    def drained(self, left: int) -> None:
        """Stopped. `left` messages could not be settled in time and come back when their leases end."""

    def counted(self, stats: Mapping[str, QueueStats] | None) -> None:
        """How each queue that has anything stands, told by whoever looks; `None` when it could not be found out."""


class Observers(Observer):
    """Passes every event on to each of these, in order.

    One that raises does not keep the others from hearing it. That is logged once for each event of an observer's:
    a broken one would otherwise fill the log at the rate of the messages.
    """

    def __init__(self, *observers: Observer) -> None:
        for event, unheard in vars(Observer).items():
            if event.startswith("_"):
                continue
            # Who does not care about an event does not cost a call.
            hear = (getattr(observer, event) for observer in observers)
            caring = [each for each in hear if getattr(each, "__func__", None) is not unheard]
            setattr(self, event, _to_each(event, caring))


class LoggingObserver(Observer):
    """Says in the log what an operator should know. Never a body, a header or a token."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logger or _log

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        self._log.warning(
            "message %d of %s: attempt %d failed with %s",
            delivery.id, delivery.queue, delivery.attempt, type(error).__name__,
        )  # fmt: skip

    def policy_failed(self, delivery: Delivery, error: Exception) -> None:
        self._log.error(
            "message %d of %s: its retry policy raised %s", delivery.id, delivery.queue, type(error).__name__
        )

    def settled(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if isinstance(settlement.outcome, Dead):
                delivery = settlement.delivery
                self._log.error(
                    "dead letter %d of %s: nobody looks after it any more: %s"
                    if isinstance(delivery, DeadDelivery)
                    else "message %d of %s is a dead letter now: %s",
                    delivery.id, delivery.queue, settlement.outcome.reason,
                )  # fmt: skip

    def superseded(self, delivery: Delivery) -> None:
        self._log.info("message %d of %s was replaced while it ran: dropped", delivery.id, delivery.queue)

    def lease_lost(self, delivery: Delivery) -> None:
        self._log.warning(
            "message %d of %s: lease lost on delivery %d; another worker has it, or it is gone",
            delivery.id, delivery.queue, delivery.deliveries,
        )  # fmt: skip

    def uncertain(self, settlement: Settlement) -> None:
        delivery = settlement.delivery
        self._log.warning(
            "message %d of %s is gone; the store's answer to our %s was lost",
            delivery.id, delivery.queue, type(settlement.outcome).__name__,
        )  # fmt: skip

    def store_unavailable(self, error: Exception, retry_in: timedelta) -> None:
        self._log.warning("the store is unavailable (%s); trying again in %s", type(error).__name__, retry_in)

    def store_recovered(self) -> None:
        self._log.info("the store answers again")

    def drained(self, left: int) -> None:
        if left:
            self._log.warning(
                "stopped with %d messages unsettled; they come back when their leases end", left
            )


def _to_each(event: str, observers: Iterable[Callable[..., None]]) -> Callable[..., None]:
    hearing = [_surely(event, each) for each in observers]
    if len(hearing) == 1:
        return hearing[0]

    def tell(*what: Any) -> None:
        for hear in hearing:
            hear(*what)

    return tell


def _surely(event: str, hear: Callable[..., None]) -> Callable[..., None]:
    """The same, but what it raises is logged, the first time, and goes no further."""
    said = False

    def heard(*what: Any) -> None:
        nonlocal said
        try:
            hear(*what)
        except Exception as error:  # noqa: BLE001 - whoever listens must not disturb what happens
            if not said:
                said = True
                # Its type alone: the text may quote the message.
                _log.error(
                    "%s raised %s when told of %r; it is told on, but this is not logged again",
                    type(getattr(hear, "__self__", hear)).__name__, type(error).__name__, event,
                )  # fmt: skip

    return heard
