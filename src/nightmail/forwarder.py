"""Passing messages on to somewhere else: a worker whose handler publishes them, a batch at a time.

store ──claim──▶ batch ──publisher──▶ one result each ──settle──▶ store (gone, later, or dead) ──▶ hooks
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypedDict, Unpack

from nightmail.engine.attempt import Batched
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.errors import LeaseLost
from nightmail.json_log import about
from nightmail.message import Delivery
from nightmail.observe import LoggingObserver, Observer
from nightmail.outcome import Dead, Done, Outcome
from nightmail.retry import RetryPolicy
from nightmail.store import Settlement, Source

Publisher: TypeAlias = Callable[[Sequence[Delivery]], Awaitable[Sequence[Exception | None]]]
"""Passes these on; for each, in order, `None` when it has arrived, else the error."""

OnPublished: TypeAlias = Callable[[Delivery], object]
OnFailed: TypeAlias = Callable[[Delivery, Exception], object]
OnDead: TypeAlias = Callable[[Delivery, str], object]

_log: Final = logging.getLogger("nightmail")


class ForwarderOptions(TypedDict, total=False):
    """How a forwarder works; each means what it means in `WorkerSettings`, and has the same default."""

    lease: timedelta
    retry: RetryPolicy
    max_deliveries: int
    handler_timeout: timedelta
    """How long the publisher may take for one batch."""
    give_up_after: timedelta | None
    graceful_timeout: timedelta
    describe_error: Callable[[BaseException], str | None]


class Forwarder:
    """Passes the messages of some queues on, at least once each. `run` until `stop`; it may run again afterwards.

    The publisher gets up to `max_batch` messages, as many as are there, and at most `concurrency` of it run at once.
    What it returns decides about each message alone: one that cannot be passed on is retried by the policy and ends
    in the dead letters without the rest of its batch. What it raises fails the whole batch, so it should raise only
    when the result is unknown for all. A wrong answer fails the whole batch too: success is never assumed.

    Messages with one `ordering_key` are passed on in order: at most one of a key is ever leased, and so in a batch,
    and it holds its key until it has arrived or is dead. Everything else may overtake.

    The hooks are called once the store has written the outcome, on the event loop, between two steps: they must
    return quickly, and cannot be coroutine functions. One that raises is logged, and changes nothing.
    `on_published(delivery)`: it has arrived. `on_failed(delivery, error)`: it will be tried again.
    `on_dead(delivery, reason)`: it was given up.
    """

    def __init__(
        self,
        store: Source,
        publisher: Publisher,
        *,
        queues: Sequence[str],
        concurrency: int = 1,
        max_batch: int = 100,
        observer: Observer | None = None,
        on_published: OnPublished | None = None,
        on_failed: OnFailed | None = None,
        on_dead: OnDead | None = None,
        **options: Unpack[ForwarderOptions],
    ) -> None:
        _at_least_one("concurrency", concurrency)
        _at_least_one("max_batch", max_batch)
        self._publisher = publisher
        self._hooks = _Hooks(
            observer or LoggingObserver(), on_published=on_published, on_failed=on_failed, on_dead=on_dead
        )
        self._worker = Worker(
            store,
            Batched(self._pass_on, max_batch),
            queues=queues,
            settings=WorkerSettings(max_workers=concurrency, **options),
            observer=self._hooks,
        )

    @property
    def is_running(self) -> bool:
        """Whether `run` is under way."""
        return self._worker.is_running

    @property
    def is_failing(self) -> bool:
        """Whether the last call to the store failed."""
        return self._worker.is_failing

    def run(self) -> Coroutine[Any, Any, None]:
        """Pass messages on until `stop`. Cancelling it stops at once: what was not passed on is handed back."""
        return self._worker.run()

    def run_until_idle(self) -> Coroutine[Any, Any, None]:
        """Pass messages on until none is due any more."""
        return self._worker.run_until_idle()

    async def stop(self) -> None:
        """Claim no more, let running publishers end, and write the outcomes of their messages; returns when done."""
        await self._worker.stop()

    async def _pass_on(self, batch: Sequence[Delivery]) -> Sequence[Exception | None]:
        try:
            results = _one_each(await self._publisher(batch), len(batch))
        except LeaseLost as lost:
            raise RuntimeError(_ITS_OWN_LEASE) from lost
        self._hooks.arrived(each for each, error in zip(batch, results, strict=True) if error is None)
        return results


class _Hooks(Observer):
    """Calls the hooks once the store has written the outcome; passes every event on to the forwarder's observer."""

    def __init__(
        self,
        observer: Observer,
        *,
        on_published: OnPublished | None,
        on_failed: OnFailed | None,
        on_dead: OnDead | None,
    ) -> None:
        for name, hook in (("on_published", on_published), ("on_failed", on_failed), ("on_dead", on_dead)):
            _check_hook(name, hook)
        self._observer = observer
        self._on_published = on_published
        self._on_failed = on_failed
        self._on_dead = on_dead
        self._results: dict[Delivery, BaseException | None] = {}
        """The publisher's results that are not yet written."""
        # Every event that is not handled here goes straight to the forwarder's observer, those of later versions too.
        for event in vars(Observer).keys() - vars(_Hooks).keys():
            if not event.startswith("_"):
                setattr(self, event, getattr(observer, event))

    def arrived(self, deliveries: Iterable[Delivery]) -> None:
        """The publisher reports these as arrived."""
        self._results.update(dict.fromkeys(deliveries))

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        self._results[delivery] = error
        self._observer.failed(delivery, error)

    def acked_in_transaction(self, delivery: Delivery) -> None:
        self._observer.acked_in_transaction(delivery)
        self._tell(delivery, Done())

    def lease_lost(self, delivery: Delivery) -> None:
        self._results.pop(delivery, None)
        self._observer.lease_lost(delivery)

    def uncertain(self, settlement: Settlement) -> None:
        self._results.pop(settlement.delivery, None)
        self._observer.uncertain(settlement)

    def drained(self, left: int) -> None:
        self._results.clear()
        self._observer.drained(left)

    def settled(self, settlements: Sequence[Settlement]) -> None:
        self._observer.settled(settlements)
        for settlement in settlements:
            self._tell(settlement.delivery, settlement.outcome)

    def _tell(self, delivery: Delivery, outcome: Outcome) -> None:
        # What never ran has no result: it was handed back or superseded, and no hook is called for either.
        ran = delivery in self._results
        error = self._results.pop(delivery, None)
        if isinstance(outcome, Dead):
            _call("on_dead", self._on_dead, delivery, outcome.reason)
        elif error is not None:
            _call("on_failed", self._on_failed, delivery, error)
        elif ran:
            _call("on_published", self._on_published, delivery)


def _call(name: str, hook: Callable[..., object] | None, delivery: Delivery, *what: object) -> None:
    if hook is None:
        return
    try:
        hook(delivery, *what)
    except Exception as error:  # noqa: BLE001 - the message is settled, whatever a hook does
        _log.error(
            "message %d of %s: the forwarder's %s raised %s",
            delivery.id, delivery.queue, name, type(error).__name__, extra=about(delivery),
        )  # fmt: skip


def _check_hook(name: str, hook: Callable[..., object] | None) -> None:
    if inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__):
        raise TypeError(f"{name} must be a plain function: a coroutine function would never be awaited")


# Taken for a lost lease of ours, it would leave the messages unsettled until their leases end.
_ITS_OWN_LEASE: Final = "the publisher has lost a lease of its own"


def _one_each(results: Sequence[Exception | None], count: int) -> list[Exception | None]:
    """What a publisher returned; raises unless it is one result for each."""
    if not isinstance(results, Sequence):
        raise TypeError(f"a publisher returns a list of results, not {type(results).__name__}")
    if len(results) != count:
        raise TypeError(f"a publisher returns one result for each of {count} messages, not {len(results)}")
    return [_checked(result) for result in results]


def _checked(result: BaseException | None) -> Exception | None:
    if isinstance(result, LeaseLost):
        return RuntimeError(_ITS_OWN_LEASE)
    if result is None or isinstance(result, Exception):
        return result
    if isinstance(result, BaseException):
        # `gather(return_exceptions=True)` returns a cancellation like this: only this one failed.
        return RuntimeError(f"passing it on ended in {type(result).__name__}")
    raise TypeError(f"of each message a publisher returns None or an exception, not {type(result).__name__}")


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
