"""What happens in the engine, one method per event. Logs, metrics and tests all listen here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from nightmail.message import Delivery
from nightmail.outcome import Dead
from nightmail.store import Settlement


class Observer:
    """Hears everything and does nothing: override what you care about.

    Called on the worker's event loop, between two steps: return quickly, and do not raise.
    """

    def claimed(self, deliveries: Sequence[Delivery]) -> None:
        """These were leased to us."""

    def started(self, delivery: Delivery) -> None:
        """Its handler starts now."""

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        """Its handler raised, or ran out of time."""

    def policy_failed(self, delivery: Delivery, error: Exception) -> None:
        """The retry policy itself raised: the message goes to the dead letters."""

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """The store has written how these ended."""

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


class LoggingObserver(Observer):
    """Says in the log what an operator should know. Never a body, a header or a token."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logger or logging.getLogger("nightmail")

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
                    "message %d of %s is a dead letter now: %s",
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
