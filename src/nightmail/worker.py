"""The worker: claim due messages, handle them, settle the results, until stopped; then drain.

    store ──claim──▶ waiting ──start──▶ running ──finish──▶ finished ──settle──▶ store (gone, later, or dead)
                        ╰───────────── lease expires ─────────────▶ store (due again)

Three loops and a keeper run at once. *Claim* looks when there is room and something may be due. *Settle* writes what
has finished, as much as has gathered. Handlers run in tasks, at most `max_workers` at a time. The *keeper*
renews every lease in hand, on a thread of the store's, and is the last to stop.

A lease is the only right to settle: the store refuses a settlement whose lease was taken over.
A finished message leaves `Finished` only after the store has answered: an outage delays, it never loses.
Only waiting is interrupted: a claim cut off half-way would strand messages that nobody holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID, uuid4

from nightmail.attempt import Attempt, Batched, Handler
from nightmail.hand import Hand
from nightmail.keeping import Keeper, Leases
from nightmail.message import Delivery, check_queue
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.outcome import Release, Standing
from nightmail.pace import Pace
from nightmail.repeating import Repeater, Step, happens_before
from nightmail.run import Run
from nightmail.runners import Runners
from nightmail.settings import WorkerSettings
from nightmail.settling import Finished
from nightmail.solitude import Solitude, is_suspect
from nightmail.store import Settlement, Source
from nightmail.waiting import Alarm, next_look

SETTLE_BATCH: Final = 1000
UNSETTLED: Final = 3 * SETTLE_BATCH
"""How many finished messages may wait to be written before fewer are claimed: a claim need not wait for them."""
GATHER_SECONDS: Final = 0.010
"""How long a finished message waits for others, while others are in hand."""
FEW: Final = 16
BUSY_SECONDS: Final = 0.1
"""How long before asking again for a row that somebody's transaction has locked."""
REVIEW_SECONDS: Final = 1.0
"""How often to ask, while there is no room, whether what was fetched ahead will still start soon."""
LAST_WRITES_SECONDS: Final = 5.0
"""How long a stopping worker tries to write its last settlements: a dead database must not hang a shutdown."""


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
        solitude: Solitude | None = None,
    ) -> None:
        self._store = store
        self._queues = check_queues(queues)
        self._settings = settings or WorkerSettings()
        self._observer = (
            observer if isinstance(observer, Observers) else Observers(observer or LoggingObserver())
        )
        self._attempt = Attempt(store, handler, self._settings, self._observer)
        self._solitude = solitude or Solitude()
        self._batch = handler.limit if isinstance(handler, Batched) else 1
        self._handle = self._handle_batch if isinstance(handler, Batched) else self._handle_one
        self._ran: asyncio.Task[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._hand = Hand()
        self._leases = Leases()
        self._finished = Finished()
        self._pace = Pace(self._batch)
        self._alarm = Alarm()
        self._suspect: Delivery | None = None
        self._unconfirmed: tuple[UUID, float] | None = None
        self._review_at = 0.0
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._runners = Runners(
            self._hand,
            self._leases,
            self._handle,
            self._settings,
            batch=self._batch,
            stopping=self._stopping,
        )
        self._in_a_hurry = asyncio.Event()
        self._drained = asyncio.Event()
        self._repeater = Repeater(self._observer, after_failure=self._alarm.at_once)

    @property
    def is_running(self) -> bool:
        """Whether `run` is under way."""
        return self._ran is not None and not self._ran.done()

    @property
    def is_failing(self) -> bool:
        """Whether the last thing asked of the store failed."""
        return self._repeater.is_failing

    @property
    def in_hand(self) -> int:
        """How many messages are claimed and not yet settled."""
        return len(self._leases)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is in hand, and no claim under way that could change that."""
        # What a handler has acknowledged itself has no lease here any more, and yet may still run.
        return not self.in_hand and self._hand.is_empty and self._unconfirmed is None

    async def run(self) -> None:
        """Work until `stop`. Cancelling it stops at once: running handlers are cancelled, everything is handed back."""
        await self._serve(self._claim_until_stopped)

    async def run_until_idle(self) -> None:
        """Work until nothing is due any more and nothing is in hand."""
        await self._serve(self._claim_until_idle)

    async def stop(self) -> None:
        """Claim no more, finish what runs, hand back what has not started; returns when that is done."""
        self._stopping.set()
        if self._ran is not None:
            await asyncio.wait({self._ran})

    async def _serve(self, claiming: Step) -> None:
        if self.is_running:
            raise RuntimeError("this worker is already running")
        self._reset()
        ran = self._ran = asyncio.create_task(self._work(claiming))
        try:
            await asyncio.shield(ran)
        except asyncio.CancelledError:
            # Cancelled ourselves, not the work: it must not leave leases behind that nobody holds.
            self._in_a_hurry.set()
            self._stopping.set()
            while not ran.done():
                # Nor may a second cancellation cut the last writes short: anyio sends one at every step.
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({ran})
            ran.result()
            raise

    async def _work(self, claiming: Step) -> None:
        self._solitude.join(self)
        loop = asyncio.get_running_loop()
        keeper = Keeper(
            self._leases,
            self._settings.lease,
            lost=lambda delivery: loop.call_soon_threadsafe(self._lose, delivery),
            failed=lambda error, retry_in: loop.call_soon_threadsafe(
                self._observer.store_unavailable, error, retry_in
            ),
        )
        try:
            with self._store.listen(self._queues) as self._bell:
                async with self._store.beside(keeper.keep), asyncio.TaskGroup() as loops:
                    settling = loops.create_task(
                        self._repeater.repeat(self._settle, when=self._gathered, until=self._drained)
                    )
                    await claiming()
                    await self._drain()
                    # Its time is up: a store that never answers must not hang the shutdown.
                    settling.cancel()
        finally:
            self._solitude.leave(self)
            self._runners.close()

    # ── claim ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _claim_until_stopped(self) -> None:
        await self._repeater.repeat(self._claim, when=self._work_expected, until=self._stopping)

    async def _claim_until_idle(self) -> None:
        while await happens_before(self._come_to_rest(), self._stopping):
            await self._repeater.until_well(self._claim, self._stopping)
            if not self.in_hand and not self._solitude.taken:
                return

    async def _come_to_rest(self) -> None:
        """Until nothing is in hand, and nobody must be alone."""
        if self._suspect is not None:
            await self._run_suspect()
        await self._hand.wait_empty()
        await self._finished.wait_none()
        await self._solitude.wait_free()

    async def _work_expected(self) -> None:
        """Until there is room, something may be due (woken, or the time has come), and nobody must be alone."""
        if self._suspect is not None:
            await self._run_suspect()
        await self._wait_for_room()
        while seconds := self._alarm.seconds_from(time.monotonic()):
            if await self._bell.wait(min(seconds, REVIEW_SECONDS) if self._hand.waiting else seconds):
                self._observer.woken()
                break
            self._review()
        # Last: a neighbour's suspect may have come while we waited for the others.
        await self._solitude.wait_free()

    async def _wait_for_room(self) -> None:
        while not self._wants_more():
            self._room.clear()
            try:
                async with asyncio.timeout(REVIEW_SECONDS):
                    await self._room.wait()
            except TimeoutError:
                self._review()

    def _review(self) -> None:
        """Hand back what will not start soon: handlers take longer than those before them did, others may be free."""
        now = time.monotonic()
        if now >= self._review_at:
            self._review_at = now + REVIEW_SECONDS
            self._hand_back(self._hand.give_back(keep=self._pace.ahead(now)))

    def _wants_more(self) -> bool:
        ahead = self._pace.ahead(time.monotonic())
        return self._space(ahead) > ahead // 2

    def _space(self, ahead: int) -> int:
        """How many more to claim. A handler with half a batch is as busy as one with a whole one."""
        free = (self._settings.max_workers - self._hand.handlers) * self._batch
        # What the store has not taken back yet counts too, or a store that cannot write would fill our memory.
        return free + ahead - self._hand.waiting - max(len(self._finished) - UNSETTLED, 0)

    async def _claim(self) -> None:
        if self._solitude.taken:
            return  # It came just now: wait again.
        self._bell.clear()
        await self._recall()
        sent = time.monotonic()
        room = self._space(self._pace.ahead(sent))
        if room <= 0:
            return
        token, until = uuid4(), sent + self._settings.lease.total_seconds()
        self._unconfirmed = token, until
        claimed = await self._store.claim(self._queues, limit=room, lease=self._settings.lease, token=token)
        self._unconfirmed = None
        self._take(claimed.deliveries, until)
        if claimed.full or len(claimed.deliveries) >= room:
            self._alarm.at_once()
        else:
            self._alarm.set(next_look(sent, claimed.next_in, self._store.look_interval))

    async def _recall(self) -> None:
        """Hand back what the last claim took if its reply was lost: no worker could have it before the lease ends."""
        if self._unconfirmed is not None:
            token, _ = self._unconfirmed
            await self._store.recall(self._queues, token)
            self._unconfirmed = None

    def _take(self, deliveries: Sequence[Delivery], until: float) -> None:
        if not deliveries:
            return
        self._leases.add(deliveries, until)
        ready = []
        for delivery in deliveries:
            if (unrun := self._attempt.without_running(delivery)) is not None:
                self._finished.put(Settlement(delivery, unrun))
            elif not is_suspect(delivery):
                ready.append(delivery)
            elif self._suspect is None:
                self._suspect = delivery
            else:
                self._hand_back([delivery])
        if ready:
            self._review_at = time.monotonic() + REVIEW_SECONDS
            self._hand.take(ready)
            self._runners.start()
        # Last: an observer that raises against its promise must not leave a message leased that nobody runs.
        self._observer.claimed(deliveries)

    async def _run_suspect(self) -> None:
        """Run the suspect when nothing else is in hand; if another worker's suspect has the process, hand it back."""
        await self._hand.wait_empty()
        await self._finished.wait_none()
        suspect, self._suspect = self._suspect, None
        if suspect is None:
            return
        if self._solitude.taken:
            self._hand_back([suspect])
            return
        self._hand.take([suspect])
        async with self._solitude.alone(self):
            self._runners.start()
            await self._hand.wait_empty()

    # ── handle ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _handle_one(self, hand: Hand, run: Run, now: float) -> float:
        """Run the next message; when it has ended."""
        delivery = hand.start_next(run, now)
        settlement: Settlement | None = None
        ended = now
        self._pace.started(now, hand.handlers)
        try:
            if self._leases.surely_holds(delivery, now):
                settlement = await self._attempt.one(delivery, run)
                ended = time.monotonic()
                self._pace.ran(ended - now)
                self._observer.ended((delivery,), ended - now)
            else:
                # Paused for longer than a lease before it could start: it is somebody else's by now.
                self._observer.lease_lost(delivery)
        finally:
            if settlement is None:
                self._leases.drop([delivery])
            else:
                self._finished.put(settlement)
            hand.finish(run)
            # While many wait, every eighth time is often enough to ask.
            waiting = hand.waiting
            if (waiting < FEW or waiting % 8 == 0) and self._wants_more():
                self._room.set()
        return ended

    async def _handle_batch(self, hand: Hand, run: Run, now: float) -> float:
        """Run the next messages together; when they have ended."""
        batch = hand.start_batch(run, now, self._batch)
        held = [delivery for delivery in batch if self._leases.surely_holds(delivery, now)]
        for delivery in set(batch).difference(held):
            self._observer.lease_lost(delivery)
        settlements: list[Settlement] = []
        ended = now
        self._pace.started(now, hand.handlers, len(batch))
        try:
            if held:
                hand.narrow(run, held)
                settlements = await self._attempt.many(held, run)
                ended = time.monotonic()
                # Fetching ahead counts messages, so it wants to know how long one of them took.
                self._pace.ran((ended - now) / len(held))
                self._observer.ended(held, ended - now)
        finally:
            self._leases.drop(set(batch).difference(each.delivery for each in settlements))
            self._finished.put_back(settlements)
            hand.finish(run)
            if self._wants_more():
                self._room.set()
        return ended

    def _lose(self, delivery: Delivery) -> None:
        """The keeper found this lease taken over. What runs may run on: the store refuses what it would write."""
        if self._hand.forget(delivery):
            self._observer.lease_lost(delivery)

    def _is_stopping(self) -> bool:
        return self._stopping.is_set()

    def _hand_back(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._finished.put(Settlement(delivery, Release()))

    # ── settle ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _gathered(self) -> None:
        """Until something is finished and, while others are in hand, a moment longer so that they go together."""
        await self._finished.wait_some()
        if not self._hand.is_empty and len(self._finished) < SETTLE_BATCH:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER_SECONDS):
                    await self._hand.wait_empty()

    async def _settle(self) -> None:
        batch = self._finished.first(SETTLE_BATCH)
        try:
            standings = await self._store.settle(batch)
        except Exception:
            self._finished.ask_again(batch)
            raise
        busy = [each for each, standing in zip(batch, standings, strict=True) if standing is Standing.BUSY]
        self._finished.drop_first(len(batch))
        self._finished.put_back(busy)
        # With nothing in hand any more, no handler is left to say that there is room again.
        self._room.set()
        self._report(batch, standings)
        if busy:
            await asyncio.sleep(BUSY_SECONDS)

    def _report(self, batch: Sequence[Settlement], standings: Sequence[Standing]) -> None:
        """Let go of what the store has answered for, and say how it stood."""
        answered = [
            (each, standing)
            for each, standing in zip(batch, standings, strict=True)
            if standing is not Standing.BUSY
        ]
        self._leases.drop([settlement.delivery for settlement, _ in answered])
        settled = [settlement for settlement, standing in answered if standing is Standing.HELD]
        if settled:
            self._observer.settled(settled)
        for settlement, standing in answered:
            if standing is Standing.LOST:
                self._observer.lease_lost(settlement.delivery)
            elif standing is Standing.UNKNOWN:
                self._observer.uncertain(settlement)

    # ── drain ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _drain(self) -> None:
        """Hand back what has not started, finish what runs, past the grace period cancel it; then the last writes."""
        self._stopping.set()
        if self._unconfirmed is not None:
            # Nobody would start what a claim took whose reply was lost, nor give it back before its lease ends.
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WRITES_SECONDS):
                    await self._repeater.tried(self._recall)
        self._hand_back(self._hand.give_back())
        if self._suspect is not None:
            self._hand_back([self._suspect])
            self._suspect = None
        await self._finish_running()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WRITES_SECONDS):
                await self._finished.wait_none()
        self._drained.set()
        self._observer.drained(self.in_hand)

    async def _finish_running(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.graceful_timeout.total_seconds()):
                await happens_before(self._hand.wait_empty(), self._in_a_hurry)
        for task in self._hand.tasks():
            task.cancel()
        # A handler that refuses to be cancelled is left behind; its lease ends by itself.
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WRITES_SECONDS):
                await self._hand.wait_empty()


def check_queues(queues: Sequence[str]) -> tuple[str, ...]:
    """The queues of one worker, if they can be."""
    if isinstance(queues, str):
        raise TypeError("queues must be a list of names, not one str")
    if not queues:
        raise ValueError("at least one queue is needed")
    for queue in queues:
        check_queue(queue)
    if len(set(queues)) != len(queues):
        raise ValueError(f"a queue is named twice: {', '.join(queues)}")
    return tuple(queues)
