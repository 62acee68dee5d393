"""A broker's operator interface: pauses, workers, running messages, why one does not run, and what is wrong."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime, timedelta

from nightmail.broker.config import OutboxBrokerConfig
from nightmail.broker.counted import must_be_awaited
from nightmail.controls import Pause, PauseCause, QueueStatus, check_pause
from nightmail.durations import Duration, as_positive
from nightmail.findings import Finding
from nightmail.message import check_name, check_queue
from nightmail.operations import why as asking
from nightmail.operations.doctor import diagnose
from nightmail.operations.operator import named
from nightmail.operations.reasons import WhyReason
from nightmail.operations.status import Looks
from nightmail.operations.workers import WorkerHoldings, workforce
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
        """The processes that consume messages: whether each lives, its queues, and what it holds."""
        return list((await workforce(self.store)).workers)

    @must_be_awaited
    async def why(self, id_: int) -> list[WhyReason]:
        """Why a message does not run: everything that holds it back, or what became of it. Each has a `text`."""
        _check_id(id_)
        return await asking.why(self.store, id_)

    @must_be_awaited
    async def status(self, *queues: str, over: Duration | None = None) -> list[QueueStatus]:
        """How these queues stand, or all: what is ready, scheduled, running, dead, late and paused, and what goes out.

        Args:
            queues: Only these.
            over: Look twice, so long apart, for what comes in and when nothing will be ready.
        """
        for queue in queues:
            check_queue(queue)
        seconds = 0.0 if over is None else as_positive("over", over).total_seconds()
        return await Looks(self.store, queues).look_twice(seconds)

    @must_be_awaited
    async def doctor(self) -> list[Finding]:
        """What is wrong, the worst first, each with its evidence, its consequence, what to do, and its runbook page."""
        return await diagnose(self.store)


def _check_id(id_: int) -> None:
    if isinstance(id_, bool) or not isinstance(id_, int):
        raise TypeError(f"a message's id is a whole number, not {type(id_).__name__}")
