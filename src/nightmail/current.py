"""Which delivery the code now running belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, NamedTuple

from nightmail.message import Delivery
from nightmail.run import Run
from nightmail.store import Store


class Current(NamedTuple):
    """A delivery in its handler."""

    store: Store
    run: Run
    delivery: Delivery

    @property
    def is_over(self) -> bool:
        """Whether the handler has ended: a task that it left behind belongs to nothing any more."""
        return self.run.delivery is not self.delivery


_current: Final[ContextVar[Current | None]] = ContextVar("nightmail_current", default=None)


def enter(store: Store, run: Run, delivery: Delivery) -> None:
    """From here on, in this task and those it starts, code belongs to `delivery`, for as long as it runs."""
    _current.set(Current(store, run, delivery))


def own_delivery(store: Store, queue: str, timer_id: str | None) -> Delivery | None:
    """The delivery whose handler is running, if it came from this store under this name.

    A publish of that name inside its own handler re-arms the timer instead of meeting itself.
    """
    current = _current.get()
    if current is None or timer_id is None or current.store is not store or current.is_over:
        return None
    delivery = current.delivery
    return delivery if delivery.queue == queue and delivery.timer_id == timer_id else None
