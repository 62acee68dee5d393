"""Which delivery the code now running belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final, NamedTuple

from nightmail.engine.slot import HandlerSlot
from nightmail.message import DeadDelivery, Delivery
from nightmail.store import Source


class Current(NamedTuple):
    """A delivery in its handler."""

    store: Source
    slot: HandlerSlot
    delivery: Delivery

    @property
    def is_over(self) -> bool:
        """Whether the handler has ended: a task that it left behind no longer belongs to a delivery."""
        return self.slot.delivery is not self.delivery


_current: Final[ContextVar[Current | None]] = ContextVar("nightmail_current", default=None)


def enter(store: Source, slot: HandlerSlot, delivery: Delivery) -> None:
    """Code in this task, and in tasks it starts, belongs to `delivery` until its handler ends."""
    _current.set(Current(store, slot, delivery))


def own_delivery(store: Source, queue: str, timer_id: str | None) -> Delivery | None:
    """The delivery whose handler is running, if it came from this store and queue with this timer id.

    A publish of that timer id inside its own handler re-arms the timer instead of conflicting with itself.
    """
    current = _current.get()
    if current is None or timer_id is None or current.store is not store or current.is_over:
        return None
    for delivery in current.slot.batch or (current.delivery,):
        if (
            delivery.timer_id == timer_id
            and delivery.queue == queue
            # What was acknowledged no longer owns its timer id, and a dead letter never does.
            and delivery not in current.slot.promised
            and not isinstance(delivery, DeadDelivery)
        ):
            return delivery
    return None


async def was_interrupted() -> bool:
    """Whether the handler that is running was cancelled by its worker, whatever it made of that."""
    current = _current.get()
    return current is not None and not current.is_over and await current.slot.was_interrupted()


def promise(deliveries: Iterable[Delivery]) -> None:
    """These are acknowledged in the handler's own transaction: from here on its commit decides, not the worker.

    Does nothing outside a handler.
    """
    current = _current.get()
    if current is not None and not current.is_over:
        current.slot.promise(deliveries, locked=current.store.capabilities.locks_rows)


def current_slot() -> HandlerSlot | None:
    """The handler slot that the running code belongs to, unless its handler has ended."""
    current = _current.get()
    return None if current is None or current.is_over else current.slot
