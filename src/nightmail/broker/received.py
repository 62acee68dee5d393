"""Deliveries on their way through FastStream, one at a time or several together, with their results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from faststream.exceptions import SkipMessage

from nightmail.engine.current import acked_in_transaction
from nightmail.engine.result import Decision, Result
from nightmail.message import Delivery
from nightmail.outcome import OUTCOMES, Dead
from nightmail.store import FullStore


@dataclass(slots=True, eq=False, repr=False)
class Received:
    """A delivery in its handler."""

    delivery: Delivery
    store: FullStore
    result: Result = field(default_factory=Result)
    write: Callable[[Decision], Awaitable[None]] | None = None
    """Writes a decision when it is made, where no worker will write it afterwards."""

    def __repr__(self) -> str:
        # Short, and without the message's content: FastStream's errors quote it.
        return f"message {self.delivery.id} of {self.delivery.queue}"

    @property
    def items(self) -> Sequence[Received]:
        """Itself: the one that is being handled."""
        return (self,)

    @property
    def unacked(self) -> Sequence[Received]:
        """Itself, unless something else was decided: what was rejected must not leave with a transaction."""
        return self.items if self.result.may_be_done else ()

    @property
    def was_handed_over(self) -> bool:
        """Whether its handler got it: it could be decoded, and its decoder did not want it skipped."""
        undecodable = isinstance(self.result.decision, Dead) and not self.result.decision.ran
        return not undecodable and not isinstance(self.result.error, SkipMessage)

    def acked(self, deliveries: Sequence[Delivery]) -> None:
        """It is acknowledged in a transaction of its handler's."""
        acked_in_transaction(deliveries)


@dataclass(slots=True, eq=False, repr=False)
class ReceivedBatch:
    """Deliveries that one handler gets together. Each may have its own result; the batch's counts for the rest."""

    items: Sequence[Received]
    store: FullStore
    result: Result = field(default_factory=Result)

    def __repr__(self) -> str:
        return f"messages {', '.join(str(item.delivery.id) for item in self.items)}"

    @property
    def unacked(self) -> Sequence[Received]:
        """Those without a decision of their own; none if something else was decided for them."""
        if not self.result.may_be_done:
            return ()
        return [
            item
            for item in self.items
            if item.result.decision is None and not item.result.acked_in_transaction
        ]

    def acked(self, deliveries: Sequence[Delivery]) -> None:
        """These are acknowledged in a transaction of their handler's."""
        acked_in_transaction(deliveries)

    def share(self) -> None:
        """The handler has ended: what it decided for the batch, or raised, is the result of the rest."""
        decision, error = self.result.decision, self.result.error
        for item in self.items:
            own = item.result
            if isinstance(own.decision, OUTCOMES) or (own.error is not None and own.error is error):
                continue  # Its own counts, and no policy may call a refused acknowledgement done.
            if decision is not None:
                own.decide(decision)
            own.error = own.error or error


@contextmanager
def acking(items: Sequence[Received]) -> Iterator[None]:
    """Note on these that their acknowledgement was refused, if it is; if not, an earlier refusal is forgotten."""
    try:
        yield
    except Exception as error:
        for item in items:
            item.result.refuse(error)
        raise
    for item in items:
        item.result.error = None


async def ack_in(received: Received | ReceivedBatch, session: object) -> None:
    """Acknowledge in the handler's own transaction what has no other decision."""
    items = received.unacked
    if not items:
        return
    deliveries = [item.delivery for item in items]
    with acking(items):
        await received.store.ack(deliveries, transaction=session)
    received.acked(deliveries)
