"""Which delivery the code now running belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from nightmail.message import Delivery
from nightmail.store import Store


@dataclass(slots=True, eq=False)
class Current:
    """A delivery in its handler. A task that the handler leaves behind sees that it is over."""

    store: Store
    delivery: Delivery
    over: bool = False


_current: Final[ContextVar[Current | None]] = ContextVar("nightmail_current", default=None)


def enter(store: Store, delivery: Delivery) -> Current:
    """From here on, in this task and those it starts, code belongs to `delivery`."""
    current = Current(store, delivery)
    _current.set(current)
    return current


def own_delivery(store: Store, queue: str, timer_id: str | None) -> Delivery | None:
    """The delivery whose handler is running, if it came from this store under this name.

    A publish of that name inside its own handler re-arms the timer instead of meeting itself.
    """
    current = _current.get()
    if current is None or current.over or timer_id is None or current.store is not store:
        return None
    delivery = current.delivery
    return delivery if delivery.queue == queue and delivery.timer_id == timer_id else None
