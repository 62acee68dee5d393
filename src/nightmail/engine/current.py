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
        """Whether the handler has ended: a task that it left behind belongs to nothing any more."""
        return self.slot.delivery is not self.delivery


_current: Final[ContextVar[Current | None]] = ContextVar("nightmail_current", default=None)


def enter(store: Source, slot: HandlerSlot, delivery: Delivery) -> None:
    """From here on, in this task and those it starts, code belongs to `delivery`, for as long as it runs."""
    _current.set(Current(store, slot, delivery))


def own_delivery(store: Source, queue: str, timer_id: str | None) -> Delivery | None:
    """The delivery whose handler is running, if it came from this store under this name.

    A publish of that name inside its own handler re-arms the timer instead of meeting itself.
    """
    current = _current.get()
    if current is None or timer_id is None or current.store is not store or current.is_over:
        return None
    for delivery in current.slot.batch or (current.delivery,):
        if (
            delivery.timer_id == timer_id
            and delivery.queue == queue
            # What was acknowledged bears no name any more, and a dead letter never did.
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
    """These are acknowledged in the handler's own transaction: from here on its commit decides, and not its worker.

    Code that runs in no worker's hands has nobody to tell.
    """
    current = _current.get()
    if current is not None and not current.is_over:
        current.slot.promise(deliveries, locked=current.store.capabilities.locks_rows)


def current_slot() -> HandlerSlot | None:
    """The run that the code now running belongs to, unless that is over."""
    current = _current.get()
    return None if current is None or current.is_over else current.slot
