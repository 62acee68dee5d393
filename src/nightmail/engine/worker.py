"""The worker: claim due messages, handle them, settle the results, until stopped; then drain.

    store ──claim──▶ waiting ──start──▶ running ──finish──▶ finished ──settle──▶ store (gone, later, or dead)
                        ╰───────────── lease expires ─────────────▶ store (due again)

Three loops and a keeper run at once. *Claim* looks when there is room and something may be due. *Settle* writes what
has finished, in batches. Handlers run in tasks, at most `max_workers` at a time. The *keeper* renews the lease of
everything in flight, on a thread of the store, and is the last to stop.

A lease is the only right to settle: the store refuses a settlement whose lease was taken over.
A finished message leaves `Finished` only after the store has answered: an outage delays, it never loses.
Only waiting is interrupted: a claim cut off half-way would leave messages leased with no worker to run them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final
from uuid import UUID

from nightmail.engine.attempt import Attempt, Batched, Handler
from nightmail.engine.dead_letters import DeadLetters
from nightmail.engine.failure_counts import FailureCounts
from nightmail.engine.finished import Finished
from nightmail.engine.idle_looks import IdleLooks
from nightmail.engine.in_flight import InFlight
from nightmail.engine.lateness import Lateness
from nightmail.engine.leases import Keeper, Leases
from nightmail.engine.next_look import Alarm, is_routine, next_look
from nightmail.engine.pace import Pace
from nightmail.engine.pausing import PATIENCE_SECONDS, Pausing
from nightmail.engine.prefetch import MOST_AHEAD, ClaimSize, Prefetch
from nightmail.engine.presence import Presence, control_of
from nightmail.engine.quarantine import Quarantine, is_quarantined
from nightmail.engine.retry_loop import RetryLoop, Step, happens_before
from nightmail.engine.runners import Runners
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.shutdown import A_MOMENT, Stopping, ends_by, leave_behind, undisturbed
from nightmail.engine.slot import HandlerSlot
from nightmail.engine.stop_requests import StopRequests
from nightmail.engine.threads import HandlerThreads
from nightmail.limits import CLAIM_BYTES
from nightmail.message import Delivery, check_queue
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.outcome import Outcome, Release, WriteResult
from nightmail.store import Claimed, Settlement, Source

SETTLE_BATCH: Final = 1000
UNSETTLED: Final = 3 * SETTLE_BATCH
"""How many finished messages may wait to be written before fewer are claimed: up to here a claim need not wait."""
GATHER_SECONDS: Final = 0.010
"""How long a finished message waits for others, while others are in flight."""
FEW: Final = 16
BUSY_SECONDS: Final = 0.1
"""How long before retrying a row that an open transaction has locked."""
REVIEW_SECONDS: Final = 1.0
"""How often to check, while there is no room, whether what was fetched ahead will still start soon."""
FEWEST_BYTES: Final = CLAIM_BYTES // 4
"""How many bytes there must be room for before more is claimed: one at a time would be slow."""


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
        self._handle = self._handle_batch if isinstance(handler, Batched) else self._handle_one
        self._ran: asyncio.Task[None] | None = None
        self._reset()

    def _reset(self) -> None:
        # What is paused are messages: dead letters are not held back.
        pausable = None if isinstance(self._store, DeadLetters) else self._control
        self._in_flight = InFlight(math.inf if pausable is None else PATIENCE_SECONDS)
        self._pausing = Pausing(
            pausable,
            self._in_flight,
            by=self._presence.name,
            observer=self._observer,
            hand_back=self._hand_back,
            failures=self._failures,
        )
        self._stops = StopRequests(
            self._control,
            self._in_flight,
            self._observer,
            forget=self._forget,
            bury=self._end_unstarted,
        )
        self._attempt = Attempt(self._store, self._handler, self._settings, self._observer, self._pausing)
        self._leases = Leases()
        self._leases_lost = 0
        self._pace = Pace()
        self._lateness = Lateness()
        self._finished = Finished()
        self._prefetch = Prefetch(self._batch)
        self._claim_size = ClaimSize(self._batch)
        self._alarm = Alarm()
        self._quarantined: Delivery | None = None
        self._most: int | None = None
        """How many to claim at most, after a claim brought a quarantined message: more of them would be handed back."""
        self._unconfirmed: tuple[UUID, float] | None = None
        self._looked = False
        self._lacks_bytes = False
        self._review_at = 0.0
        self._room = asyncio.Event()
        self._stopping = Stopping(self._settings.graceful_timeout)
        self._runners = Runners(
            self._in_flight,
            self._leases,
            self._handle,
            self._settings,
            batch=self._batch,
            stopping=self._stopping.asked,
            check=self._pausing.check,
            threads=HandlerThreads(
                self._settings.max_workers,
                f"nightmail {', '.join(self.queues)}",
                overdue=self._report_overdue,
                isolated=self._settings.isolated,
            ),
        )
        self._left_behind: list[Delivery] = []
        self._drained = asyncio.Event()
        self._retry_loop = RetryLoop(self._observer, after_failure=self._alarm.at_once)

    @property
    def is_running(self) -> bool:
        """Whether `run` is under way."""
        return self._ran is not None and not self._ran.done()

    @property
    def is_failing(self) -> bool:
        """Whether the last call to the store failed."""
        return self._retry_loop.is_failing

    @property
    def in_hand(self) -> int:
        """How many messages are claimed and not yet settled."""
        return len(self._leases)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is in flight, and no claim under way that could change that."""
        # What a handler has acknowledged itself has no lease here any more, but may still run.
        return not self.in_hand and self._in_flight.is_empty and self._unconfirmed is None

    @property
    def has_only_its_quarantined(self) -> bool:
        """Whether nothing is in flight except a quarantined message that has not started."""
        return self.in_hand <= 1 and self._in_flight.is_empty and not self._finished

    def state(self) -> dict[str, Any]:
        """What it says about itself to those who ask which workers there are: JSON."""
        return {
            "queues": list(self.queues),
            "dead_letters": isinstance(self._store, DeadLetters),
            "max_workers": self._settings.max_workers,
            "running": self._in_flight.running,
            "waiting": self._in_flight.waiting,
            "handler_seconds": self._prefetch.mean,
            "longest_handler_seconds": self._prefetch.longest_of_late(),
            "ended_per_second": self._pace.per_second(),
            "late_seconds": self._lateness.seconds(),
            "max_attempts": self._max_attempts,
            "lease_seconds": self._settings.lease.total_seconds(),
            "leases_lost": self._leases_lost,
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
        return self._begin(
            lambda: self._retry_loop.repeat(
                self._claim, when=self._work_expected, until=self._stopping.asked
            ),
            stays=True,
        )

    def run_until_idle(self) -> Coroutine[Any, Any, None]:
        """Work until nothing is due any more and nothing is in flight."""
        return self._begin(self._claim_until_idle, stays=False)

    async def stop(self) -> None:
        """Claim no more, finish what runs, hand back what has not started; returns when that is done.

        It takes at most `graceful_timeout` and 2.5 s more, whatever the store does. Cancelling it ends the grace
        period: it then returns a little later, when everything is handed back.
        """
        self._stopping.ask()
        if self._ran is not None:
            try:
                await asyncio.wait({self._ran})
            except asyncio.CancelledError:
                self._stopping.hurry()
                await undisturbed(self._ran)
                raise

    def stop_message(self, id_: int) -> None:
        """Stop this message, if it is in flight here, without waiting for the keeper to hear of it."""
        delivery = self._in_flight.find(id_)
        if delivery is None and self._quarantined is not None and self._quarantined.id == id_:
            delivery = self._quarantined
        if delivery is not None:
            self._stops.add(delivery)

    def hurry(self) -> None:
        """Stop without a grace period: running handlers are cancelled at once."""
        self._stopping.hurry()

    def _begin(self, claiming: Step, *, stays: bool) -> Coroutine[Any, Any, None]:
        # Before its first step: a `stop` that comes right after `create_task(worker.run())` must be heard.
        if self.is_running:
            raise RuntimeError("this worker is already running")
        self._reset()
        return self._serve(claiming, stays)

    async def _serve(self, claiming: Step, stays: bool) -> None:
        if self.is_running:
            raise RuntimeError("this worker is already running")
        ran = self._ran = asyncio.create_task(self._work(claiming, stays))
        try:
            await asyncio.shield(ran)
        except asyncio.CancelledError:
            # We were cancelled, not the work: it must not leave leases behind without a holder.
            self._stopping.hurry()
            await undisturbed(ran)
            ran.result()
            raise

    async def _work(self, claiming: Step, stays: bool) -> None:
        self._quarantine.join(self)
        self._presence.join(self, self._store, at_once=stays)
        if stays:
            self._idle_looks.join(self._alarm, self._store, self.queues)
        loop = asyncio.get_running_loop()
        keeper = Keeper(
            self._leases,
            self._settings.lease,
            lost=lambda delivery: loop.call_soon_threadsafe(self._lose, delivery),
            failed=lambda error, retry_in: loop.call_soon_threadsafe(
                self._observer.store_unavailable, error, retry_in
            ),
            stop=lambda delivery: loop.call_soon_threadsafe(self._stops.add, delivery),
        )
        try:
            with self._store.listen(self.queues) as self._bell:
                beside = self._store.run_on_keeper_thread(
                    keeper.keep, lingers=lambda: keeper.linger(self._left_behind)
                )
                await beside.__aenter__()
                try:
                    await self._claim_and_drain(claiming)
                finally:
                    # The store has a connection to close there, which may hang.
                    leaving = asyncio.ensure_future(beside.__aexit__(None, None, None))
                    if await ends_by(max(self._stopping.ends, time.monotonic() + A_MOMENT), leaving):
                        leaving.result()
        finally:
            self._quarantine.leave(self)
            self._idle_looks.leave(self._alarm)
            self._runners.close()
            await self._presence.leave(
                self, self._store, by=max(self._stopping.last_writes_end(), time.monotonic() + A_MOMENT)
            )

    async def _claim_and_drain(self, claiming: Step) -> None:
        claims, settling = asyncio.create_task(claiming()), asyncio.create_task(self._settle_until_drained())
        cancelled = False
        try:
            await happens_before(_first_ended(claims, settling), self._stopping.asked)
        except asyncio.CancelledError:
            # When `asyncio.run` ends it cancels every task: what is in flight must be handed back all the same.
            cancelled = True
            self._stopping.hurry()
        self._stopping.ask()
        draining = asyncio.create_task(self._drain(claims))
        await undisturbed(draining)
        if draining.cancelled():
            cancelled = True
            self._stopping.hurry()
            draining = asyncio.create_task(self._drain(claims))
            await undisturbed(draining)
        leave_behind(settling)
        draining.result()
        if cancelled:
            raise asyncio.CancelledError
        if claims.done() and not claims.cancelled():
            claims.result()

    # ── claim ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _claim_until_idle(self) -> None:
        while not self._stopping.asked.is_set():
            self._looked = False
            await self._retry_loop.repeat(
                self._claim, when=self._come_to_rest, until=self._stopping.asked, once=True
            )
            if self._looked and not self.in_hand:
                return

    async def _come_to_rest(self) -> None:
        """Until nothing is in flight, and claims are allowed."""
        if self._quarantined is not None:
            await self._run_quarantined()
        await self._in_flight.wait_empty()
        await self._finished.wait_none()
        await self._wait_for_quarantined()

    async def _work_expected(self) -> None:
        """Until there is room, something may be due (woken, or the time has come), and claims are allowed."""
        if self._quarantined is not None:
            await self._run_quarantined()
        await self._wait_for_room()
        while seconds := self._alarm.seconds_from(time.monotonic()):
            if await self._bell.wait(min(seconds, REVIEW_SECONDS) if self._in_flight.waiting else seconds):
                self._alarm.at_once()
                self._observer.woken()
                break
            self._review()
        # Last: another worker may have quarantined a message while we waited for the rest.
        await self._wait_for_quarantined()

    async def _wait_for_quarantined(self) -> None:
        """Until claims are allowed; and if this worker gets quarantined messages, until no other worker runs one."""
        await self._quarantine.wait_open()
        if self._most is not None:
            await self._quarantine.wait_free()

    async def _wait_for_room(self) -> None:
        while not self._wants_more():
            self._lacks_bytes = self._bytes_left() < FEWEST_BYTES
            self._room.clear()
            try:
                async with asyncio.timeout(REVIEW_SECONDS):
                    await self._room.wait()
            except TimeoutError:
                self._review()

    def _review(self) -> None:
        """Hand back what will not start soon: handlers take longer than before, and other workers may be free."""
        now = time.monotonic()
        if now >= self._review_at:
            self._review_at = now + REVIEW_SECONDS
            # What free handlers are about to start stays: this process may only have stood still for a while.
            self._hand_back(self._in_flight.give_back(keep=self._free + self._prefetch.ahead(now)))

    def _wants_more(self) -> bool:
        ahead = self._prefetch.ahead(time.monotonic())
        return self._space(ahead) > ahead // 2 and self._bytes_left() >= FEWEST_BYTES

    @property
    def _free(self) -> int:
        """How many can start at once. A handler with half a batch is as busy as one with a whole one."""
        return (self._settings.max_workers - self._in_flight.handlers) * self._batch

    def _space(self, ahead: int) -> int:
        """How many more to claim."""
        # What is not settled yet counts too, or a store that cannot write would fill our memory.
        return self._free + ahead - self._in_flight.waiting - max(len(self._finished) - UNSETTLED, 0)

    def _bytes_left(self) -> int:
        """How many more bytes may wait here, to be started or to be written."""
        return CLAIM_BYTES - self._in_flight.waiting_bytes - self._finished.bytes

    async def _claim(self) -> None:
        if self._quarantine.closed or (self._most is not None and self._quarantine.taken):
            return  # A message was quarantined just now: wait again.
        if await self._idle_looks.puts_off(self._alarm):
            return
        self._bell.clear()
        await self._recall()
        sent = time.monotonic()
        room, bytes_left = self._space(self._prefetch.ahead(sent)), self._bytes_left()
        if room <= 0 or bytes_left <= 0:
            return
        limit = self._claim_size.limit(
            room if self._most is None else min(room, self._most),
            short=self._presence.is_shared or self._store.capabilities.serial,
        )
        token, until = self._presence.new_token(), sent + self._settings.lease.total_seconds()
        self._looked = True
        self._unconfirmed = token, until
        try:
            claimed = await self._store.claim(
                self.queues,
                limit=limit,
                lease=self._settings.lease,
                token=token,
                max_bytes=min(self._claim_size.max_bytes, bytes_left),
            )
        except Exception:
            # It may have been carried out only just now, however long ago it was sent.
            self._unconfirmed = token, time.monotonic() + self._settings.lease.total_seconds()
            self._claim_size.failed()
            raise
        self._unconfirmed = None
        self._claim_size.went_well(len(claimed.deliveries), limit, full=claimed.full)
        try:
            self._take(claimed, sent, until)
        finally:
            # Whatever is wrong with one of them, the others run.
            self._runners.start()
        if claimed.full:
            self._alarm.at_once()
        else:
            interval = self._store.look_interval
            self._alarm.set(
                next_look(sent, claimed.next_in, interval), routine=is_routine(claimed.next_in, interval)
            )

    async def _recall(self) -> None:
        """Hand back what the last claim took if its reply was lost: no worker could have it before the lease ends."""
        if self._unconfirmed is not None:
            token, until = self._unconfirmed
            if time.monotonic() < until:
                await self._store.recall(self.queues, token)
            self._unconfirmed = None

    def _take(self, claimed: Claimed, sent: float, until: float) -> None:
        deliveries = claimed.deliveries
        self._leases.add(deliveries, until)
        if claimed.probe:
            self._pausing.probes.update(deliveries)
        ready: list[Delivery] = []
        quarantined: list[Delivery] = []
        broken: Exception | None = None
        for delivery in deliveries:
            try:
                skipped = self._attempt.skip_outcome(delivery)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not strand the others of this claim
                broken = broken or error
                self._hand_back([delivery])
                continue
            if skipped is not None:
                self._end_unstarted(delivery, skipped)
            elif self._pausing.paused and self._pausing.holds_back(delivery, sent):
                self._hand_back([delivery])
            elif is_quarantined(delivery) and not self._settings.isolated:
                quarantined.append(delivery)
            else:
                ready.append(delivery)
        self._sort_out(quarantined, full=claimed.full)
        if self._stopping.asked.is_set():
            self._hand_back(ready)
        elif ready:
            now = time.monotonic()
            self._review_at = now + REVIEW_SECONDS
            self._in_flight.take(ready, sent)
            self._lateness.claimed(ready, now)
        # Last: an observer that raises although it must not may not leave a message leased and never run.
        if deliveries:
            self._observer.claimed(deliveries)
        if broken is not None:
            raise broken

    def _sort_out(self, quarantined: Sequence[Delivery], *, full: bool) -> None:
        """Keep one quarantined message, hand the others back. While they come, claim singly, then gradually more."""
        if quarantined:
            self._most = 1
            if self._quarantined is None and not self._quarantine.taken and not self._stopping.asked.is_set():
                self._quarantined, *quarantined = quarantined
            self._hand_back(quarantined)
        elif self._most is not None:
            self._most = self._most * 2 if full and self._most < MOST_AHEAD else None

    async def _run_quarantined(self) -> None:
        """Run the quarantined message when nothing else is in flight; if another worker runs one, hand it back."""
        alone = await self._quarantine.take(self)
        message, self._quarantined = self._quarantined, None
        if message is None:
            self._quarantine.free(self)
        elif not alone:
            self._hand_back([message])
        else:
            self._in_flight.take_alone(message, ended=partial(self._quarantine.free, self))
            self._runners.start()
            await self._quarantine.wait_open()
            if self._quarantine.taken:
                self._most = None  # It runs for long. Others may run now, but no other quarantined one.

    # ── handle ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _handle_one(self, slot: HandlerSlot, now: float) -> float:
        """Run the message in this slot; when it has ended."""
        in_flight = self._in_flight
        (delivery,) = slot.results
        if self._lacks_bytes:
            self._note_room()
        settlement: Settlement | None = None
        ended = now
        self._prefetch.started(now, in_flight.handlers)
        try:
            if self._leases.surely_holds(delivery, now):
                if delivery.id in self._lateness.sampled:
                    self._lateness.started(delivery, now)
                settlement = await self._attempt.one(delivery, slot)
                if self._pausing.probes:
                    self._pausing.ended(delivery, slot.results[delivery], settlement)
                ended = time.monotonic()
                self._prefetch.ran(ended - now)
                self._observer.ended((delivery,), ended - now)
            else:
                # The claim or a pause took longer than the lease. Hand it back, unless another worker has it by now.
                settlement = Settlement(delivery, Release())
        finally:
            if slot.left_behind:
                pass  # Its thread still runs: nothing is written, and its lease is kept.
            elif settlement is None:
                self._leases.drop([delivery])
                self._note_acks(slot, [delivery])
            else:
                self._finished.put(settlement)
            in_flight.finish(slot)
            # While many wait, every eighth time is often enough to check.
            waiting = in_flight.waiting
            if (waiting < FEW or waiting % 8 == 0) and self._wants_more():
                self._room.set()
        return ended

    async def _handle_batch(self, slot: HandlerSlot, now: float) -> float:
        """Run the messages in this slot together; when they have ended."""
        in_flight = self._in_flight
        batch = list(slot.results)
        if self._lacks_bytes:
            self._note_room()
        held = self._leases.surely_held(batch, now)
        if len(held) < len(batch):
            self._hand_back(each for each in batch if each not in held)
        settlements: list[Settlement] = []
        ended = now
        self._prefetch.started(now, in_flight.handlers, len(batch))
        try:
            if held:
                in_flight.narrow(slot, held)
                for delivery in held:
                    if delivery.id in self._lateness.sampled:
                        self._lateness.started(delivery, now)
                settlements = await self._attempt.many(held, slot)
                if self._pausing.probes:
                    self._note_probes(slot, settlements)
                ended = time.monotonic()
                self._prefetch.ran(ended - now, len(held))
                self._observer.ended(held, ended - now)
        finally:
            if not slot.left_behind:
                unwritten = set(held).difference(each.delivery for each in settlements)
                self._leases.drop(unwritten)
                self._finished.put_all(settlements)
                self._note_acks(slot, unwritten)
            in_flight.finish(slot)
            if self._wants_more():
                self._room.set()
        return ended

    def _forget(self, delivery: Delivery) -> bool:
        """Drop this one if it has not started, even if it is quarantined and waits for its turn."""
        if delivery == self._quarantined:
            self._quarantined = None
            return True
        return self._in_flight.forget(delivery)

    def _lose(self, delivery: Delivery) -> None:
        """The keeper found this lease taken over. What runs may run on: the store refuses what it would write."""
        if self._in_flight.forget(delivery):
            self._leases_lost += 1
            self._pausing.probes.discard(delivery)
            self._observer.lease_lost(delivery)

    def _note_acks(self, slot: HandlerSlot, unwritten: Iterable[Delivery]) -> None:
        """Of these, for which there is nothing to write, some were acknowledged in the handler's own transaction."""
        for delivery in unwritten:
            result = slot.results[delivery]
            if result.acked_in_transaction and result.error is None:
                self._pace.acked(delivery.queue)

    def _note_probes(self, slot: HandlerSlot, settlements: Sequence[Settlement]) -> None:
        written = {settlement.delivery: settlement for settlement in settlements}
        for delivery, result in slot.results.items():
            self._pausing.ended(delivery, result, written.get(delivery))

    def _note_room(self) -> None:
        """A started message frees its bytes: a claim that had no room for bytes can go now."""
        if self._bytes_left() >= FEWEST_BYTES:
            self._lacks_bytes = False
            self._room.set()

    def _hand_back(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._end_unstarted(delivery, Release())

    def _end_unstarted(self, delivery: Delivery, outcome: Outcome) -> None:
        """This one ends without its handler."""
        self._pausing.probes.discard(delivery)
        self._finished.put(Settlement(delivery, outcome))

    # ── settle ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _settle_until_drained(self) -> None:
        while not self._drained.is_set():
            try:
                await self._retry_loop.repeat(self._settle, when=self._gathered, until=self._drained)
            except asyncio.CancelledError:
                # When `asyncio.run` ends it cancels every task. This one is needed until all is handed back.
                if self._drained.is_set():
                    raise

    async def _gathered(self) -> None:
        """Until something is finished and, while others are in flight, a moment longer so that they go together."""
        await self._finished.wait_some()
        if not self._in_flight.is_empty and len(self._finished) < SETTLE_BATCH:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER_SECONDS):
                    await self._in_flight.wait_empty()

    async def _settle(self) -> None:
        batch = list(islice(self._finished, SETTLE_BATCH))
        try:
            results = await self._store.settle(batch)
        except BaseException:
            self._finished.ask_again(batch)
            raise
        answers = list(zip(batch, results, strict=True))
        busy = [settlement for settlement, result in answers if result is WriteResult.BUSY]
        settled = [settlement for settlement, result in answers if result is WriteResult.WRITTEN]
        self._finished.drop_first(len(batch))
        self._finished.put_all(busy)
        self._leases.drop({each.delivery for each in batch}.difference(each.delivery for each in busy))
        # With nothing in flight any more, no handler is left to signal that there is room again.
        self._room.set()
        if settled:
            self._pace.settled(settled)
            self._observer.settled(settled)
        for settlement, result in answers:
            if result is WriteResult.LOST:
                self._leases_lost += 1
                self._observer.lease_lost(settlement.delivery)
            elif result is WriteResult.UNKNOWN:
                self._observer.uncertain(settlement)
        if busy:
            await asyncio.sleep(BUSY_SECONDS)

    # ── drain ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _drain(self, claims: asyncio.Task[None]) -> None:
        """Hand back what has not started, finish what runs, past the grace period cancel it; then the last writes."""
        self._hand_back(self._in_flight.give_back())
        if self._quarantined is not None:
            self._hand_back([self._quarantined])
            self._quarantined = None
        confirming = asyncio.create_task(self._confirm(claims))
        await self._finish_running()
        await self._stopping.ends_in_time(confirming)
        await self._pausing.finish(self._stopping.last_writes_end())
        await ends_by(self._stopping.last_writes_end(), self._finished.wait_none())
        self._drained.set()
        self._observer.drained(self._leases.others_than(self._left_behind))

    async def _confirm(self, claims: asyncio.Task[None]) -> None:
        """Wait for a claim that is under way. What it took, and may have taken, goes back at once."""
        if not await self._stopping.ends_in_time(claims) and not claims.cancelled():
            return
        if self._unconfirmed is not None:
            recalled = self._retry_loop.repeat(self._recall, until=self._drained, once=True)
            await ends_by(self._stopping.last_writes_end(), recalled)

    async def _finish_running(self) -> None:
        ended = happens_before(self._in_flight.wait_empty(), self._stopping.in_a_hurry)
        await ends_by(self._stopping.grace_ends, ended)
        for task in self._in_flight.tasks():
            task.cancel()
        # A handler that refuses to be cancelled is left behind; its lease ends by itself.
        await ends_by(self._stopping.handlers_left_behind, self._in_flight.wait_empty())
        await self._leave_behind()

    async def _leave_behind(self) -> None:
        """Wait no longer for threads that do not end. Their messages stay leased for as long as they run."""
        left = []
        for slot in self._in_flight.slots:
            if (call := slot.call) is None or call.is_over:
                continue
            kept = [each for each, result in slot.results.items() if not result.acked_in_transaction]
            self._left_behind += kept
            slot.left_behind = True
            call.leave_behind(partial(self._leases.drop, kept))
            slot.task.cancel()
            left.append(slot.task)
        if left:
            await asyncio.wait(left, timeout=A_MOMENT)

    def _report_overdue(self, slot: HandlerSlot) -> None:
        """A thread does not end although it was told to."""
        for delivery in slot.results:
            self._observer.overdue(delivery, time.monotonic() - slot.begun)


async def _first_ended(*tasks: asyncio.Task[None]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


def check_queues(queues: Sequence[str]) -> tuple[str, ...]:
    """The queues of one worker; raises if they are not valid."""
    if isinstance(queues, str):
        raise TypeError("queues must be a list of names, not one str")
    if not queues:
        raise ValueError("at least one queue is needed")
    for queue in queues:
        check_queue(queue)
    if len(set(queues)) != len(queues):
        raise ValueError(f"a queue is named twice: {', '.join(queues)}")
    return tuple(queues)
