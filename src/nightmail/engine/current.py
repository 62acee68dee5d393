"""Which delivery the code now running belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import Context, ContextVar
from typing import Final, NamedTuple

from nightmail.engine.result import Result
from nightmail.engine.slot import HandlerSlot
from nightmail.message import DeadDelivery, Delivery
from nightmail.store import Source


class Current(NamedTuple):
    """A delivery, or a batch, in its handler."""

    store: Source
    slot: HandlerSlot
    results: dict[Delivery, Result]

    @property
    def is_over(self) -> bool:
        """Whether the handler has ended: a task that it left behind no longer belongs to a delivery."""
        return self.slot.results is not self.results


_current: Final[ContextVar[Current | None]] = ContextVar("nightmail_current", default=None)


def enter(context: Context, store: Source, slot: HandlerSlot) -> None:
    """Code in this context, and in tasks it starts, belongs to what `slot` runs, until its handler ends."""
    context.run(_current.set, Current(store, slot, slot.results))


def results_here() -> dict[Delivery, Result]:
    """The results of what the handler now running has, for it to set."""
    current = _current.get()
    assert current is not None  # noqa: S101 - handlers are run by a worker
    return current.results


def own_delivery(store: Source, queue: str, timer_id: str | None) -> Delivery | None:
    """The delivery whose handler is running, if it came from this store and queue with this timer id.

    A publish of that timer id inside its own handler re-arms the timer instead of conflicting with itself.
    """
    current = _current.get()
    if current is None or timer_id is None or current.store is not store or current.is_over:
        return None
    for delivery, result in current.results.items():
        if (
            delivery.timer_id == timer_id
            and delivery.queue == queue
            # What was acknowledged no longer owns its timer id, and a dead letter never does.
            and not result.acked_in_transaction
            and not isinstance(delivery, DeadDelivery)
        ):
            return delivery
    return None


async def was_interrupted() -> bool:
    """Whether the handler that is running was cancelled by its worker, whatever it made of that."""
    current = _current.get()
    return current is not None and not current.is_over and await current.slot.was_interrupted()


def acked_in_transaction(deliveries: Iterable[Delivery]) -> None:
    """These are acknowledged in the handler's own transaction: from here on its commit decides, not the worker.

    Does nothing outside a handler.
    """
    current = _current.get()
    if current is not None and not current.is_over:
        current.slot.acked_in_transaction(deliveries, locked=current.store.capabilities.locks_rows)


def current_slot() -> HandlerSlot | None:
    """The handler slot that the running code belongs to, unless its handler has ended."""
    current = _current.get()
    return None if current is None or current.is_over else current.slot
