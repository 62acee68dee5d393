"""Two stores driven side by side: whatever is done in whatever order, both answer alike and look alike afterwards.

One of them is the memory store, whose rules are short enough to be read. Hypothesis chooses what is done; when the two
disagree it finds the shortest way there and prints it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nightmail.controls import Pause, WorkerReport
from nightmail.errors import LeaseLost, MessageTooLarge, TimerExists
from nightmail.message import DeadDelivery, Delivery, Message
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.records import DeadFilter
from nightmail.store import FullStore, Settlement
from nightmail.stores.memory.rows import Row
from nightmail.stores.shared import marks
from nightmail.stores.shared.provenance import LETTER, MESSAGE
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance import Harness, RolledBack
from tests.stores.memory.support import MemoryHarness

T = TypeVar("T")

QUEUES: Final = ("orders", "refunds")
NAMES: Final = ("a", "b")
SECOND: Final = timedelta(seconds=1)
MAX_BODY_BYTES: Final = 400
EXAMPLES: Final = int(os.environ.get("MODEL_EXAMPLES", "12"))
STEPS: Final = int(os.environ.get("MODEL_STEPS", "40"))

some = st.integers(0, 30)
"""One of those that are there: counted round."""
several = st.lists(some, min_size=1, max_size=3, unique=True)
delays = st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]).map(lambda seconds: SECOND * seconds)
leases = st.sampled_from([SECOND, SECOND * 3])
budgets = st.sampled_from([1, 250, 10**6])
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.just(Done()),
    st.builds(Retry, delays, st.sampled_from([None, "TimeoutError()", "two\nlines " * 40])),
    st.builds(Postpone, delays),
    st.just(Release()),
    st.just(Dead("rejected", "ValueError: no")),
    st.just(Dead("expired", ran=False)),
)
filters = st.builds(
    DeadFilter,
    queue=st.sampled_from([None, "orders"]),
    reason=st.sampled_from([None, "expired"]),
    older_than=st.sampled_from([None, SECOND * 3]),
)


@st.composite
def messages(draw: st.DrawFn, *, timers: bool = True) -> Message:
    """Anything that may be published, and bodies that are too large."""
    timer = draw(st.sampled_from([None, None, *NAMES])) if timers else None
    policy = "skip"
    if timer is not None:
        policy = draw(st.sampled_from(["skip", "raise", "replace", "earliest", "latest"]))
    dedup = policy in ("skip", "raise") and timer is not None and draw(st.booleans())
    due = draw(st.sampled_from([None, None, SECOND, SECOND * 2, SECOND * 5]))
    return Message(
        queue=draw(st.sampled_from(QUEUES)),
        body=b"x" * draw(st.sampled_from([1, 1, 100, 200])),
        headers=draw(st.sampled_from([{}, {"trace": "abc"}])),
        timer_id=timer,
        on_conflict=policy,  # type: ignore[arg-type]
        dedup_for=SECOND * 3 if dedup else None,
        expires_in=draw(st.sampled_from([None, None, SECOND * 6])),
        ordering_key=draw(st.sampled_from([None, None, "k", "l"])),
        priority=draw(st.sampled_from([0, 0, 0, 5, 9])),
        due=due,
    )


class Twin:
    """One store of the two. Messages are known in both by the order in which they were published."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.store: FullStore
        self.held: list[Delivery] = []
        self.letters: list[DeadDelivery] = []
        self._names: dict[int, int] = {}

    async def open(self) -> None:
        self.store = await self.harness.open(keep_delivered=True, max_body_bytes=MAX_BODY_BYTES)

    def name(self, id_: int | None) -> int | None:
        """By what this message is known in both."""
        return None if id_ is None else self._names.setdefault(id_, len(self._names))

    def shown(self, delivery: Delivery) -> dict[str, Any]:
        """A delivery, without what is each store's own: the ids of messages and letters."""
        shown = {field.name: getattr(delivery, field.name) for field in fields(delivery)}
        headers = {name: text for name, text in delivery.headers.items() if name not in (LETTER, MESSAGE)}
        shown["encoded_headers"] = headers
        if isinstance(delivery, DeadDelivery):
            return shown | {"id": None, "message_id": self.name(delivery.message_id)}
        return shown | {"id": self.name(delivery.id)}

    async def seen(self) -> Any:
        """All that can be seen from outside."""
        waiting = sorted(
            (
                pending.queue,
                self.name(pending.id),
                pending.due_at,
                pending.attempts,
                pending.body,
                pending.priority,
                pending.timer_id or "",
            )
            for pending in await self.store.peek(limit=1000)
        )
        letters = sorted(
            (
                letter.queue,
                self.name(letter.message_id),
                letter.reason,
                letter.attempts,
                letter.deliveries,
                letter.died_at,
            )
            for letter in await self.store.dead(DeadFilter(), limit=1000)
        )
        known = sorted(
            (
                message.queue,
                self.name(message.id),
                message.running,
                message.superseded,
                message.deliveries,
                message.attempts,
                message.due_at,
                str(message.claimed_at),
                str(message.lease_until),
                str(message.last_attempt_at),
                str(message.last_error),
            )
            for message in await self.store.find(list(self._names))
        )
        summary = await self.store.summarize_dead(DeadFilter())
        causes = sorted(
            (
                group.queue,
                group.reason,
                group.fingerprint or "",
                group.count,
                group.first_died_at,
                group.last_died_at,
            )
            for group in summary.groups
        )
        leases = [(self.name(each.id), replace(each, id=0)) for each in await self.store.leases()]
        steered = sorted(leases, key=str), await self.store.pauses(), await self.store.workers()
        consumers = await self.store.last_consumers()
        return await self.store.stats(), waiting, letters, known, summary.count, causes, steered, consumers

    async def facts(self, id_: int) -> Any:
        """All that is known about one message, without the ids."""
        facts = await self.store.facts(id_)
        message, letter, before = facts.message, facts.letter, facts.key_held_by
        return replace(
            facts,
            message=None if message is None else replace(message, id=0, encoded_headers=""),
            letter=None if letter is None else replace(letter, id=0, message_id=0, encoded_headers=""),
            key_held_by=None if before is None else replace(before, id=0, encoded_headers=""),
            superseded_by=self.name(facts.superseded_by),
        ), None if before is None else self.name(before.id)


class StoreModel(RuleBasedStateMachine):
    """Every verb of the contract, on both stores."""

    make_harness: Callable[[], Harness]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.claims = 0
        self.twins = [Twin(self.make_harness()), Twin(MemoryHarness())]
        for twin in self.twins:
            twin.harness.clock = self.clock
        self.run(self._open())
        self.transactions = self.twins[0].store.capabilities.transactions

    async def _open(self) -> None:
        empty: Callable[[], Awaitable[None]] | None = getattr(self.twins[0].harness, "make_empty", None)
        if empty is not None:
            await empty()
        for twin in self.twins:
            await twin.open()

    def teardown(self) -> None:
        async def close() -> None:
            for twin in self.twins:
                await twin.store.close()

        self.run(close())
        self.runner.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def both(self, ask: Callable[[Twin], Coroutine[Any, Any, Any]]) -> Any:
        """What both answer, which must be the same."""
        answer, expected = self.run(ask(self.twins[0])), self.run(ask(self.twins[1]))
        assert answer == expected
        return expected

    @property
    def held(self) -> int:
        return len(self.twins[1].held)

    @property
    def letters(self) -> int:
        return len(self.twins[1].letters)

    @invariant()
    def both_look_alike(self) -> None:
        """After each step the two cannot be told apart from outside."""
        self.both(Twin.seen)

    # ── time ───────────────────────────────────────────────────────────────────────────────────────────────

    @rule(by=st.sampled_from([0.3, 1.0, 2.0]))
    def advance(self, by: float) -> None:
        self.clock.advance(SECOND * by)

    # ── publish ────────────────────────────────────────────────────────────────────────────────────────────

    @rule(message=messages(), own=st.none() | some, committed=st.sampled_from([None, None, True, False]))
    def publish(self, message: Message, own: int | None, committed: bool | None) -> None:
        def of(twin: Twin) -> Delivery | None:
            return None if own is None or not twin.held else twin.held[own % len(twin.held)]

        async def ask(twin: Twin) -> Any:
            try:
                return await self._joined(
                    twin,
                    committed,
                    lambda transaction: twin.store.publish(message, transaction=transaction, own=of(twin)),
                    twin.name,
                )
            except (LeaseLost, TimerExists) as error:
                return type(error)

        self.both(ask)

    @rule(batch=st.lists(messages(timers=False), max_size=4))
    def publish_batch(self, batch: list[Message]) -> None:
        async def ask(twin: Twin) -> Any:
            return [twin.name(id_) for id_ in await twin.store.publish_batch(batch)]

        self.both(ask)

    @rule(queue=st.sampled_from(QUEUES))
    def publish_too_large(self, queue: str) -> None:
        async def ask(twin: Twin) -> Any:
            try:
                await twin.store.publish(Message(queue=queue, body=b"x" * (MAX_BODY_BYTES + 1)))
            except MessageTooLarge as error:
                return error.size, error.limit

        assert self.both(ask) is not None

    # ── claim ──────────────────────────────────────────────────────────────────────────────────────────────

    # Of several queues all there is, of one a few: whose turn it is among queues is each store's own affair.
    @rule(
        asked=st.sampled_from(
            [(QUEUES, 1000, 10**6), *[((queue,), limit, None) for queue in QUEUES for limit in (1, 4, 1000)]]
        ),
        max_bytes=budgets,
        lease=leases,
    )
    def claim(self, asked: tuple[Sequence[str], int, int | None], max_bytes: int, lease: timedelta) -> None:
        queues, limit, budget = asked
        if len(self._probed(queues)) > 1:
            # Which of them is probed first is each store's own affair.
            queues = queues[:1]
        token = self._new_token()
        if len(self._levels_due(queues)) > 1:
            # Where bytes stop a claim, how large the share of the oldest is, is each store's own affair.
            budget = 10**6

        async def ask(twin: Twin) -> Any:
            claimed = await twin.store.claim(
                queues, limit=limit, lease=lease, token=token, max_bytes=budget or max_bytes
            )
            by_queue = [each for queue in queues for each in claimed.deliveries if each.queue == queue]
            twin.held += by_queue
            hints.append(claimed.next_in)
            return [twin.shown(delivery) for delivery in by_queue], claimed.full, claimed.probe

        hints: list[timedelta | None] = []
        pauses = self._pauses(queues)
        _, full, _ = self.both(ask)
        hint, earliest = hints
        if full:
            assert hint is earliest is None
        else:
            # Messages that wait for their ordering keys may count or not.
            latest = self._next_without_followers(queues, pauses)
            assert _or_never(earliest) <= _or_never(hint) <= _or_never(latest)

    def _new_token(self) -> UUID:
        self.claims += 1
        return UUID(int=self.claims)

    def _levels_due(self, queues: Sequence[str]) -> set[int]:
        return {row.priority for row in self._rows(queues) if row.due_at <= self.clock.now()}

    def _pauses(self, queues: Sequence[str]) -> list[Pause]:
        pauses = self.run(self.twins[1].store.pauses())
        return [pause for pause in pauses if pause.queue in queues]

    def _probed(self, queues: Sequence[str]) -> list[Pause]:
        """The automatic pauses that are past their end."""
        now = self.clock.now()
        return [
            each
            for each in self._pauses(queues)
            if each.automatic and each.until is not None and each.until <= now
        ]

    def _next_without_followers(self, queues: Sequence[str], pauses: Sequence[Pause]) -> timedelta | None:
        now = self.clock.now()
        held_back = {
            (pause.queue, pause.ordering_key)
            for pause in pauses
            if not (pause.automatic and pause.until is not None and pause.until <= now)
        }
        rows = [
            row
            for row in self._rows(queues)
            if held_back.isdisjoint({(row.queue, None), (row.queue, row.ordering_key)})
        ]

        def follows(row: Row) -> bool:
            return row.ordering_key is not None and any(
                other.head_key is not None or (other.id < row.id and other.due_at <= row.due_at)
                for other in rows
                if other is not row and (other.queue, other.ordering_key) == (row.queue, row.ordering_key)
            )

        moments = [row.due_at for row in rows if row.due_at > now and not follows(row)]
        moments += [row.lease_until for row in rows if row.lease_until is not None and row.lease_until > now]
        moments += [pause.until for pause in pauses if pause.until is not None and pause.until > now]
        return min(moments) - now if moments else None

    def _rows(self, queues: Sequence[str]) -> list[Row]:
        tables = cast("MemoryHarness", self.twins[1].harness).data.tables
        return [row for queue in queues for row in tables.queue(queue).rows.values()]

    @precondition(lambda self: self.held)
    @rule(which=some, queues=st.sampled_from([QUEUES, QUEUES[:1]]))
    def recall(self, which: int, queues: Sequence[str]) -> None:
        self.both(lambda twin: twin.store.recall(queues, twin.held[which % len(twin.held)].token))

    @precondition(lambda self: self.held)
    @rule(which=several, ended=st.lists(outcomes, min_size=3, max_size=3), repeated=st.booleans())
    def settle(self, which: list[int], ended: list[Outcome], repeated: bool) -> None:
        self.both(lambda twin: twin.store.settle(_settlements(twin.held, which, ended, repeated)))

    @precondition(lambda self: self.held)
    @rule(which=several, lease=leases)
    def extend(self, which: list[int], lease: timedelta) -> None:
        self.both(lambda twin: twin.store.extend(_chosen(twin.held, which), lease))

    @precondition(lambda self: self.held and self.transactions)
    @rule(which=several, committed=st.booleans(), hold=st.booleans())
    def ack(self, which: list[int], committed: bool, hold: bool) -> None:
        async def ask(twin: Twin) -> Any:
            verb = twin.store.hold if hold else twin.store.ack
            try:
                return await self._joined(
                    twin,
                    committed,
                    lambda transaction: verb(_chosen(twin.held, which), transaction=transaction),
                )
            except LeaseLost as lost:
                return sorted(str(twin.name(id_)) for id_ in lost.ids)

        self.both(ask)

    # ── controls ───────────────────────────────────────────────────────────────────────────────────────────

    @rule(
        queue=st.sampled_from(QUEUES),
        key=st.sampled_from([None, None, "k"]),
        until=st.sampled_from([None, 0.0, 1.0, 3.0]),
        automatic=st.booleans(),
    )
    def pause(self, queue: str, key: str | None, until: float | None, automatic: bool) -> None:
        automatic = automatic and key is None and bool(until)
        self.both(
            lambda twin: twin.store.pause(
                queue,
                ordering_key=key,
                until=None if until is None else SECOND * until,
                by="ann",
                reason="provider down",
                automatic=automatic,
            )
        )

    @rule(queue=st.sampled_from(QUEUES), key=st.sampled_from([None, None, "k"]), automatic=st.booleans())
    def resume(self, queue: str, key: str | None, automatic: bool) -> None:
        automatic = automatic and key is None
        self.both(lambda twin: twin.store.resume(queue, ordering_key=key, automatic=automatic))

    @precondition(lambda self: self.held)
    @rule(which=some)
    def probe_again(self, which: int) -> None:
        self.both(lambda twin: twin.store.probe_again(twin.held[which % len(twin.held)]))

    @precondition(lambda self: self.held)
    @rule(which=some)
    def request_stop(self, which: int) -> None:
        self.both(lambda twin: twin.store.request_stop(twin.held[which % len(twin.held)].id, by="ann"))

    @precondition(lambda self: self.held)
    @rule(which=some)
    def facts(self, which: int) -> None:
        self.both(lambda twin: twin.facts(twin.held[which % len(twin.held)].id))

    @rule(
        worker=st.sampled_from(["11" * 8, "22" * 8]),
        queues=st.sampled_from([QUEUES, QUEUES[:1]]),
        running=st.integers(0, 2),
        gone=st.booleans(),
    )
    def report(self, worker: str, queues: tuple[str, ...], running: int, gone: bool) -> None:
        report = WorkerReport(
            id=worker, host="host", pid=1, version="1", queues=queues, state={"running": running}
        )
        self.both(lambda twin: twin.store.sign_off(worker) if gone else twin.store.report(report))

    # ── timers ─────────────────────────────────────────────────────────────────────────────────────────────

    @rule(queue=st.sampled_from(QUEUES), name=st.sampled_from(NAMES))
    def cancel(self, queue: str, name: str) -> None:
        self.both(lambda twin: twin.store.cancel(queue, name))

    @rule(queue=st.sampled_from(QUEUES), name=st.sampled_from(NAMES), due=st.sampled_from([-1, 0, 1, 4]))
    def reschedule(self, queue: str, name: str, due: int) -> None:
        self.both(lambda twin: twin.store.reschedule(queue, name, SECOND * due))

    @rule(queue=st.sampled_from(QUEUES))
    def cancel_all(self, queue: str) -> None:
        self.both(lambda twin: twin.store.cancel_all(queue))

    # ── dead letters ───────────────────────────────────────────────────────────────────────────────────────

    @rule(
        queues=st.sampled_from([QUEUES, QUEUES[:1], QUEUES[1:]]),
        limit=st.sampled_from([1, 3, 1000]),
        max_bytes=budgets,
        lease=leases,
    )
    def claim_dead(self, queues: Sequence[str], limit: int, max_bytes: int, lease: timedelta) -> None:
        token = self._new_token()

        async def ask(twin: Twin) -> Any:
            claimed = await twin.store.claim_dead(
                queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes
            )
            for each in claimed.deliveries:
                assert isinstance(each, DeadDelivery)
                twin.letters.append(each)
            return [twin.shown(each) for each in claimed.deliveries], claimed.next_in, claimed.full

        self.both(ask)

    @precondition(lambda self: self.letters)
    @rule(which=some)
    def recall_dead(self, which: int) -> None:
        self.both(lambda twin: twin.store.recall_dead(QUEUES, twin.letters[which % len(twin.letters)].token))

    @precondition(lambda self: self.letters)
    @rule(which=several, ended=st.lists(outcomes, min_size=3, max_size=3), repeated=st.booleans())
    def settle_dead(self, which: list[int], ended: list[Outcome], repeated: bool) -> None:
        self.both(lambda twin: twin.store.settle(_settlements(twin.letters, which, ended, repeated)))

    @precondition(lambda self: self.letters)
    @rule(which=several, lease=leases)
    def extend_dead(self, which: list[int], lease: timedelta) -> None:
        self.both(lambda twin: twin.store.extend(_chosen(twin.letters, which), lease))

    @rule(places=several, to=st.sampled_from([None, None, *QUEUES]), keep_timer_ids=st.booleans())
    def redrive(self, places: list[int], to: str | None, keep_timer_ids: bool) -> None:
        async def ask(twin: Twin) -> Any:
            letters = await twin.store.dead(DeadFilter(), limit=1000)
            in_order = sorted(letters, key=lambda letter: twin.name(letter.message_id) or 0)
            chosen = _chosen(in_order, places) if in_order else []
            moved = await twin.store.redrive(chosen, to=to, keep_timer_ids=keep_timer_ids)
            return [twin.name(id_) for id_ in moved]

        self.both(ask)

    @rule(which=filters, limit=st.sampled_from([1, 2]))
    def purge(self, which: DeadFilter, limit: int) -> None:
        self.both(lambda twin: twin.store.purge(which, limit=limit))

    @rule(age=st.sampled_from([2, 8]))
    def sweep(self, age: int) -> None:
        async def ask(twin: Twin) -> Any:
            swept = await twin.store.sweep(older_than=SECOND * age, limit=1000)
            # Ended windows are also dropped by publishes, when it suits them.
            return swept.delivered, swept.dead

        self.both(ask)

    async def _joined(
        self,
        twin: Twin,
        committed: bool | None,
        verb: Callable[[Any], Awaitable[T]],
        shown: Callable[[T], Any] = lambda answer: answer,
    ) -> Any:
        """Carry out a verb by itself, or in a caller's transaction that is then committed or rolled back.

        What is rolled back was never published: the next message may get the same id.
        """
        if committed is None or not self.transactions:
            return shown(await verb(None))
        answer: T
        try:
            async with twin.harness.transaction() as transaction:
                answer = await verb(transaction)
                if not committed:
                    raise RolledBack
        except RolledBack:
            return answer is None
        return shown(answer)


def _chosen(these: Sequence[T], which: list[int]) -> list[T]:
    """Those at these places, counted round, each once."""
    return [these[place] for place in dict.fromkeys(place % len(these) for place in which)]


def _settlements(
    held: Sequence[Delivery], which: list[int], ended: list[Outcome], repeated: bool
) -> list[Settlement]:
    return [
        Settlement(delivery, outcome, repeated)
        for delivery, outcome in zip(_chosen(held, which), ended, strict=False)
    ]


def run_model(harness: Callable[[], Harness]) -> None:
    """Drive a store of this kind and the memory store side by side, as often as the settings say."""
    machine = type("StoreModel", (StoreModel,), {"make_harness": staticmethod(harness)})
    with pytest.MonkeyPatch.context() as patch:
        # A full claim may pass over what became available late, for a second. The memory store never does.
        patch.setattr(marks, "LOOK_BEHIND_EVERY", 0.0)
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            ),
        )


def _or_never(until: timedelta | None) -> timedelta:
    return timedelta.max if until is None else until
