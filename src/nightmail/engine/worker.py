"""The worker: claim due messages, handle them, settle the results, until stopped; then drain.

    store ──claim──▶ waiting ──start──▶ running ──finish──▶ finished ──settle──▶ store (gone, later, or dead)
                        ╰───────────── lease expires ─────────────▶ store (due again)

Three loops and a keeper run at once. `Claiming` looks when there is room and something may be due. `Settling` writes
what has finished, in batches. Handlers run in the tasks of `Runners`, at most `max_workers` at a time. The `Keeper`
renews the lease of everything in flight, on a thread of the store, and is the last to stop. Before it, `Draining`.

A lease is the only right to settle: the store refuses a settlement whose lease was taken over.
A finished message leaves `Finished` only after the store has answered: an outage delays, it never loses.
Only waiting is interrupted: a claim cut off half-way would leave messages leased with no worker to run them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from nightmail.engine.attempt import Attempt, Batched, Handler
from nightmail.engine.claiming import Claiming
from nightmail.engine.dead_letters import DeadLetters
from nightmail.engine.draining import Draining
from nightmail.engine.failure_counts import FailureCounts
from nightmail.engine.handling import Handling
from nightmail.engine.idle_looks import IdleLooks
from nightmail.engine.leases import Keeper
from nightmail.engine.pausing import PATIENCE_SECONDS, Pausing
from nightmail.engine.presence import Presence, control_of
from nightmail.engine.quarantine import Quarantine
from nightmail.engine.quarantined import Quarantined
from nightmail.engine.queues import check_queues
from nightmail.engine.retry_loop import happens_before
from nightmail.engine.room import Room
from nightmail.engine.run import Run
from nightmail.engine.runners import Runners
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.settling import Settling
from nightmail.engine.shutdown import A_MOMENT, ends_by, first_ended, leave_behind, undisturbed
from nightmail.engine.slot import HandlerSlot
from nightmail.engine.sorting import Sorting
from nightmail.engine.stop_requests import StopRequests
from nightmail.engine.threads import HandlerThreads
from nightmail.message import Delivery
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.store import Control, Source


class Worker:
    """Delivers messages of some queues to a handler. `run` until `stop`; it may run again afterwards.

    With `Batched(handler)` it delivers several at a time; with `DeadLetters(store)` it delivers dead letters.
    """

    def __init__(
        self,
        store: Source,
        handler: Handler | Batched,
        *,
        queues: Sequence[str],
        settings: WorkerSettings | None = None,
        observer: Observer | None = None,
        quarantine: Quarantine | None = None,
        presence: Presence | None = None,
        idle_looks: IdleLooks | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """`quarantine`, `presence` and `idle_looks` are shared by the workers of a process.

        `about` is what it reports besides.
        """
        self._store = store
        self.queues: Final = check_queues(queues)
        self._settings = settings or WorkerSettings()
        self._observer = (
            observer if isinstance(observer, Observers) else Observers(observer or LoggingObserver())
        )
        self._handler = handler
        self._quarantine = quarantine or Quarantine()
        self._presence = presence or Presence()
        self._idle_looks = idle_looks or IdleLooks()
        self._about = dict(about or {})
        self._control = control_of(store)
        breaker = self._settings.breaker
        self._failures = None if breaker is None else FailureCounts(breaker)
        self._batch = handler.limit if isinstance(handler, Batched) else 1
        self._ran: asyncio.Task[None] | None = None
        self._put_together(self._new_run())

    def _new_run(self) -> Run:
        return Run(
            self._store,
            self.queues,
            self._settings,
            self._observer,
            batch=self._batch,
            unchecked_seconds=math.inf if self._pausable is None else PATIENCE_SECONDS,
        )

    @property
    def _pausable(self) -> Control | None:
        """What is paused are messages: dead letters are not held back."""
        return None if isinstance(self._store, DeadLetters) else self._control

    def _put_together(self, run: Run) -> None:
        """Make the parts of this run."""
        self._run = run
        room = Room(run)
        self._pausing = Pausing(run, self._pausable, by=self._presence.name, failures=self._failures)
        attempt = Attempt(self._store, self._handler, self._settings, self._observer, self._pausing)
        handling = Handling(run, attempt, self._pausing, room)
        self._runners = Runners(
            run.in_flight,
            run.leases,
            handling.many if isinstance(self._handler, Batched) else handling.one,
            self._settings,
            batch=self._batch,
            stopping=run.stopping.asked,
            check=self._pausing.check,
            threads=HandlerThreads(
                self._settings.max_workers,
                f"nightmail {', '.join(self.queues)}",
                overdue=self._report_overdue,
                isolated=self._settings.isolated,
            ),
        )
        self._quarantined = Quarantined(run, self._quarantine, self._runners)
        self._stops = StopRequests(run, self._control, self._quarantined)
        sorting = Sorting(run, attempt, self._pausing, self._quarantined, room)
        self._claiming = Claiming(
            run, room, sorting, self._quarantined, self._runners, self._presence, self._idle_looks
        )
        self._settling = Settling(run)
        self._draining = Draining(run, self._claiming, self._quarantined, self._pausing)

    @property
    def is_running(self) -> bool:
        """Whether `run` is under way."""
        return self._ran is not None and not self._ran.done()

    @property
    def is_failing(self) -> bool:
        """Whether the last call to the store failed."""
        return self._run.retry_loop.is_failing

    @property
    def in_hand(self) -> int:
        """How many messages are claimed and not yet settled."""
        return len(self._run.leases)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is in flight, and no claim under way that could change that."""
        return self._run.is_at_rest

    def state(self) -> dict[str, Any]:
        """What it says about itself to those who ask which workers there are: JSON."""
        return {
            "queues": list(self.queues),
            "dead_letters": isinstance(self._store, DeadLetters),
            "max_workers": self._settings.max_workers,
            "running": self._run.in_flight.running,
            "waiting": self._run.in_flight.waiting,
            "handler_seconds": self._run.prefetch.mean,
            "longest_handler_seconds": self._run.prefetch.longest_of_late(),
            "ended_per_second": self._run.pace.per_second(),
            "late_seconds": self._run.lateness.seconds(),
            "max_attempts": self._max_attempts,
            "lease_seconds": self._settings.lease.total_seconds(),
            "leases_lost": self._run.leases.lost,
            "open_breakers": sorted(self._pausing.paused),
            "failing": self.is_failing,
            **self._about,
        }

    @property
    def _max_attempts(self) -> int | None:
        """How often a message is tried, if its policy says so: one of the application's need not."""
        most = getattr(self._settings.retry, "max_attempts", None)
        return most if isinstance(most, int) else None

    def run(self) -> Coroutine[Any, Any, None]:
        """Work until `stop`. Cancelling it stops at once: running handlers are cancelled, everything is handed back."""
        self._begin()
        return self._serve(stays=True)

    def run_until_idle(self) -> Coroutine[Any, Any, None]:
        """Work until nothing is due any more and nothing is in flight."""
        self._begin()
        return self._serve(stays=False)

    async def stop(self) -> None:
        """Claim no more, finish what runs, hand back what has not started; returns when that is done.

        It takes at most `graceful_timeout` and 2.5 s more, whatever the store does. Cancelling it ends the grace
        period: it then returns a little later, when everything is handed back.
        """
        self._run.stopping.ask()
        if self._ran is not None:
            try:
                await asyncio.wait({self._ran})
            except asyncio.CancelledError:
                self._run.stopping.hurry()
                await undisturbed(self._ran)
                raise

    def stop_message(self, id_: int) -> None:
        """Stop this message, if it is in flight here, without waiting for the keeper to hear of it."""
        delivery = self._run.in_flight.find(id_)
        quarantined = self._quarantined.message
        if delivery is None and quarantined is not None and quarantined.id == id_:
            delivery = quarantined
        if delivery is not None:
            self._stops.add(delivery)

    def hurry(self) -> None:
        """Stop without a grace period: running handlers are cancelled at once."""
        self._run.stopping.hurry()

    def _begin(self) -> None:
        # Before its first step: a `stop` that comes right after `create_task(worker.run())` must be heard.
        if self.is_running:
            raise RuntimeError("this worker is already running")
        before = self._run
        self._put_together(self._new_run())
        # A handler that refuses to end may outlive its run.
        before.finished.go_on_in(self._run.finished)

    async def _serve(self, *, stays: bool) -> None:
        if self.is_running:
            raise RuntimeError("this worker is already running")
        ran = self._ran = asyncio.create_task(self._work(stays=stays))
        try:
            await asyncio.shield(ran)
        except asyncio.CancelledError:
            # We were cancelled, not the work: it must not leave leases behind without a holder.
            self._run.stopping.hurry()
            await undisturbed(ran)
            ran.result()
            raise

    async def _work(self, *, stays: bool) -> None:
        self._quarantine.join(self._quarantined)
        self._presence.join(self, self._store, at_once=stays)
        if stays:
            self._idle_looks.join(self._run.alarm, self._store, self.queues)
        loop = asyncio.get_running_loop()
        keeper = Keeper(
            self._run.leases,
            self._settings.lease,
            lost=lambda delivery: loop.call_soon_threadsafe(self._lose, delivery),
            failed=lambda error, retry_in: loop.call_soon_threadsafe(
                self._observer.store_unavailable, error, retry_in
            ),
            stop=lambda delivery: loop.call_soon_threadsafe(self._stops.add, delivery),
        )
        try:
            with self._store.listen(self.queues) as self._claiming.bell:
                beside = self._store.run_on_keeper_thread(
                    keeper.keep, lingers=lambda: keeper.linger(self._draining.left_behind)
                )
                await beside.__aenter__()
                try:
                    await self._claim_and_drain(stays=stays)
                finally:
                    # The store has a connection to close there, which may hang.
                    leaving = asyncio.ensure_future(beside.__aexit__(None, None, None))
                    if await ends_by(max(self._run.stopping.ends, time.monotonic() + A_MOMENT), leaving):
                        leaving.result()
        finally:
            self._quarantine.leave(self._quarantined)
            self._idle_looks.leave(self._run.alarm)
            self._runners.close()
            await self._presence.leave(
                self, self._store, by=max(self._run.stopping.last_writes_end(), time.monotonic() + A_MOMENT)
            )

    async def _claim_and_drain(self, *, stays: bool) -> None:
        claiming = self._claiming.until_stopped() if stays else self._claiming.until_idle()
        claims, settling = asyncio.create_task(claiming), asyncio.create_task(self._settling.until_drained())
        cancelled = False
        try:
            await happens_before(first_ended(claims, settling), self._run.stopping.asked)
        except asyncio.CancelledError:
            # When `asyncio.run` ends it cancels every task: what is in flight must be handed back all the same.
            cancelled = True
            self._run.stopping.hurry()
        self._run.stopping.ask()
        draining = asyncio.create_task(self._draining.drain(claims))
        await undisturbed(draining)
        if draining.cancelled():
            cancelled = True
            self._run.stopping.hurry()
            draining = asyncio.create_task(self._draining.drain(claims))
            await undisturbed(draining)
        leave_behind(settling)
        draining.result()
        if cancelled:
            raise asyncio.CancelledError
        if claims.done() and not claims.cancelled():
            claims.result()

    def _lose(self, delivery: Delivery) -> None:
        """The keeper found this lease taken over. What runs may run on: the store refuses what it would write."""
        if self._run.in_flight.forget(delivery):
            self._run.leases.lost += 1
            self._run.probes.discard(delivery)
            self._observer.lease_lost(delivery)

    def _report_overdue(self, slot: HandlerSlot) -> None:
        """A thread does not end although it was told to."""
        for delivery in slot.results:
            self._observer.overdue(delivery, time.monotonic() - slot.begun)
