"""A broker's operator interface: pauses, workers, running messages, and why a message does not run."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime, timedelta

from nightmail.broker.config import OutboxBrokerConfig
from nightmail.broker.counted import must_be_awaited
from nightmail.controls import Pause, PauseCause, check_pause
from nightmail.durations import Duration, as_positive
from nightmail.message import check_name, check_queue
from nightmail.operations import why as asking
from nightmail.operations import workers as listing
from nightmail.operations.operator import named
from nightmail.operations.reasons import WhyReason
from nightmail.operations.workers import WorkerHoldings
from nightmail.store import FullStore


class Steering:
    """Pauses queues, stops messages, and says what goes on."""

    @property
    @abstractmethod
    def store(self) -> FullStore:
        """Where orders are noted."""

    @property
    @abstractmethod
    def _own_config(self) -> OutboxBrokerConfig: ...

    @must_be_awaited
    async def pause(
        self,
        queue: str,
        *,
        key: str | None = None,
        until: Duration | datetime | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> None:
        """Start nothing more of a queue, in any process, until it is resumed. What runs finishes; publishing goes on.

        Within a second no handler starts any more. A pause survives restarts; pausing again overwrites it.

        Args:
            queue: The queue.
            key: Only messages with this ordering key.
            until: Until then, or for so long; `None` is until `resume`.
            reason: Why, for those who find it paused.
            by: Who says so; your user name and this machine's if not given.
        """
        end = until if until is None or isinstance(until, datetime) else as_positive("until", until)
        check_pause(queue, key, end, named(by), automatic=False)
        await self.store.pause(queue, ordering_key=key, until=end, by=named(by), reason=reason)
        delay = end if isinstance(end, timedelta) else None
        self._own_config.observer.paused(queue, PauseCause.OPERATOR, named(by), delay, reason)

    @must_be_awaited
    async def resume(
        self, queue: str, *, key: str | None = None, breaker: bool = False, by: str | None = None
    ) -> bool:
        """End a pause; whether there was one. Workers go on at once.

        Args:
            queue: The queue.
            key: The pause of this ordering key.
            breaker: The pause that a handler or a breaker set, in place of a person's.
            by: Who says so, for the log.
        """
        check_queue(queue)
        if key is not None:
            check_name("key", key)
            if breaker:
                raise ValueError("a breaker pauses a whole queue: give key or breaker, not both")
        ended = await self.store.resume(queue, ordering_key=key, automatic=breaker)
        if ended:
            self._own_config.observer.resumed(queue, named(by))
        return ended

    @must_be_awaited
    async def pauses(self, queue: str | None = None) -> list[Pause]:
        """The pauses in force, of this queue or of all: who paused what, since when, until when and why."""
        if queue is not None:
            check_queue(queue)
        return await self.store.pauses(queue)

    @must_be_awaited
    async def stop_message(self, id_: int, *, by: str | None = None) -> bool:
        """End the handler of a running message, wherever it runs; whether it runs. It becomes a dead letter.

        Its process hears of it when it renews the lease, within seconds. An `async def` is cancelled then; a `def` is
        told to end, as at a time-out.

        Args:
            id_: The id of the message.
            by: Who says so; your user name and this machine's if not given.
        """
        _check_id(id_)
        return await self.store.request_stop(id_, by=named(by))

    @must_be_awaited
    async def workers(self) -> list[WorkerHoldings]:
        """The processes that consume messages: when each was last seen, its queues, and what it holds."""
        return await listing.workers(self.store)

    @must_be_awaited
    async def why(self, id_: int) -> list[WhyReason]:
        """Why a message does not run: everything that holds it back, or what became of it. Each has a `text`."""
        _check_id(id_)
        return await asking.why(self.store, id_)


def _check_id(id_: int) -> None:
    if isinstance(id_, bool) or not isinstance(id_, int):
        raise TypeError(f"a message's id is a whole number, not {type(id_).__name__}")
