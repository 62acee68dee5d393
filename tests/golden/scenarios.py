"""Every verb of the contract, in small scenarios: what is written here is what the golden files show.

All are played on one store, whose connections are open. Where statements are prepared, or scripts loaded, they are
played twice, and only the second time is written down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from nightmail.controls import FORGOTTEN_AFTER, WorkerReport
from nightmail.errors import LeaseLost, TimerExists
from nightmail.message import Delivery
from nightmail.outcome import Done, Postpone, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Control, Extend, Inspection, Source, Store
from tests.golden.record import ANOTHER
from tests.golden.stage import HOUR, LEASE, REJECTED, SECOND, Stage

Play: TypeAlias = Callable[[Stage], Awaitable[Any]]
PATIENCE: Final = 30


@dataclass(frozen=True, slots=True)
class Scenario:
    """Something that a verb is asked to do."""

    verb: str
    title: str
    play: Play
    needs: str = ""
    """A capability without which it cannot be played."""
    whole: bool = False
    """Whether it asks about all queues: played before there are those of the others."""

    @property
    def name(self) -> str:
        return f"{self.verb}: {self.title}" if self.title else self.verb


SCENARIOS: Final[list[Scenario]] = []
ONCE: Final = frozenset({"open", "migrate", "schema_sql", "close"})
"""Verbs of a store's life: they cannot be played twice, see `tests.golden.golden`."""
KEEPING: Final = (
    "settle: done",
    "settle: one of each",
    "ack: two, in a caller's transaction",
    "ack: two, in a transaction that the store makes",
    "sweep: a dead letter and a dedup window",
)
"""Played also by a store that keeps what was delivered."""
BY_THE_SERVERS_CLOCK: Final = (
    "publish: plain",
    "publish: due far ahead",
    "publish: a timer, replace, name taken",
    "publish: in a caller's transaction",
    "claim: of a queue not looked at before, empty",
    "claim: of a queue not looked at before, three, all there are",
    "settle: one of each",
    "settle: a dead letter, one of each",
    "extend: two",
    "claim_dead: two, all there are",
    "reschedule: a waiting timer, by a delay",
    "cancel: a waiting timer",
    "peek: a queue",
)
"""Played also by a store without a clock of its own. How far other claims look would depend on how slow this machine
is."""


def verbs() -> list[str]:
    """All that the contract has, in its order, properties apart."""
    return list(
        dict.fromkeys(
            name
            for protocol in (Store, Inspection, Control, Source)
            for name, member in vars(protocol).items()
            if callable(member) and not name.startswith("_")
        )
    )


def scenario(verb: str, title: str = "", *, whole: bool = False) -> Callable[[Play], Play]:
    def added(play: Play) -> Play:
        SCENARIOS.append(Scenario(verb, title, play, whole=whole))
        return play

    return added


def in_transactions(verb: str, ask: Callable[[Stage, Any], Awaitable[Any]], ready: Play) -> None:
    """The verb in a caller's transaction, and in that of synchronous code, after `ready`."""

    async def joined(stage: Stage) -> None:
        await ready(stage)
        async with stage.transaction() as own:
            await stage.recorded(ask(stage, own))

    async def blocking(stage: Stage) -> None:
        await ready(stage)
        with stage.blocking() as own:
            await stage.recorded(ask(stage, own))

    SCENARIOS.append(Scenario(verb, "in a caller's transaction", joined))
    SCENARIOS.append(Scenario(verb, "in synchronous code", blocking, "blocking"))


async def nothing(stage: Stage) -> None:
    """Nothing needs to be there."""


async def a_timer(stage: Stage) -> None:
    await stage.publish(timer_id="timer", due=HOUR)


# ------------------------------------------------------------------------------------- the store


@scenario("ping")
async def ping(stage: Stage) -> None:
    await stage.recorded(stage.store.ping())


@scenario("check")
async def check(stage: Stage) -> None:
    await stage.recorded(stage.store.check())


# --------------------------------------------------------------------------------------- publish


def publishes(title: str, ready: Play = nothing, **options: Any) -> None:
    async def play(stage: Stage) -> None:
        await ready(stage)
        await stage.recorded(stage.store.publish(stage.message(**options)))

    SCENARIOS.append(Scenario("publish", title, play))


publishes("plain")
publishes("plain, a second in the same queue", Stage.publish)
publishes(
    "with headers, a priority, an expiry and a delay",
    headers={"a": 1},
    priority=5,
    expires_in=HOUR,
    due=SECOND,
)
publishes("due far ahead", due=HOUR)
publishes("with an ordering key", ordering_key="key")
publishes("a timer", timer_id="timer", due=HOUR)
for each in ("skip", "replace", "earliest", "latest"):
    publishes(f"a timer, {each}, name taken", a_timer, timer_id="timer", on_conflict=each, due=HOUR / 2)
publishes("a timer, latest, moved", a_timer, timer_id="timer", on_conflict="latest", due=HOUR * 2)
publishes("a timer with an ordering key", timer_id="timer", ordering_key="key")
publishes("with a dedup window", timer_id="timer", dedup_for=HOUR)


@scenario("publish", "a timer, raise, name taken")
async def publish_refused(stage: Stage) -> None:
    await a_timer(stage)

    async def publish() -> None:
        try:
            await stage.publish(timer_id="timer", on_conflict="raise")
        except TimerExists:
            return
        raise AssertionError

    await stage.recorded(publish())


@scenario("publish", "with a dedup window, not over yet")
async def publish_deduplicated(stage: Stage) -> None:
    await stage.publish(timer_id="timer", dedup_for=HOUR)
    await stage.settle(await stage.claim(), Done())
    await stage.recorded(stage.publish(timer_id="timer", dedup_for=HOUR))


@scenario("publish", "a timer, replace, name running")
async def publish_superseding(stage: Stage) -> None:
    await stage.publish(timer_id="timer")
    await stage.claim()
    await stage.recorded(stage.publish(timer_id="timer", on_conflict="replace"))


@scenario("publish", "a timer, re-armed by its handler")
async def publish_rearming(stage: Stage) -> None:
    await stage.publish(timer_id="timer")
    (own,) = await stage.claim()
    await stage.recorded(stage.store.publish(stage.message(timer_id="timer", due=HOUR), own=own))


@scenario("publish", "plain, fenced by a delivery")
async def publish_fenced(stage: Stage) -> None:
    (own,) = await stage.claimed()
    await stage.recorded(stage.store.publish(stage.message(), own=own))


@scenario("publish", "plain, fenced by a dead letter")
async def publish_fenced_by_letter(stage: Stage) -> None:
    (own,) = await stage.letters()
    await stage.recorded(stage.store.publish(stage.message(), own=own))


@scenario("publish", "plain, fenced by a lost lease")
async def publish_lost(stage: Stage) -> None:
    (own,) = await stage.claimed()
    await stage.settle([own], Release())

    async def publish() -> None:
        try:
            await stage.store.publish(stage.message(), own=own)
        except LeaseLost:
            return
        raise AssertionError

    await stage.recorded(publish())


in_transactions("publish", lambda stage, own: stage.store.publish(stage.message(), transaction=own), nothing)


@scenario("publish", "a timer in a caller's transaction")
async def publish_timer_in_transaction(stage: Stage) -> None:
    async with stage.transaction() as own:
        timer = stage.message(timer_id="timer", on_conflict="replace", due=HOUR)
        await stage.recorded(stage.store.publish(timer, transaction=own))


@scenario("publish", "a second in the same transaction")
async def publish_again_in_transaction(stage: Stage) -> None:
    async with stage.transaction() as own:
        await stage.store.publish(stage.message(), transaction=own)
        await stage.recorded(stage.store.publish(stage.message(), transaction=own))


@scenario("publish_batch", "none")
async def publish_batch_none(stage: Stage) -> None:
    await stage.recorded(stage.store.publish_batch([]))


@scenario("publish_batch", "three, one with an ordering key")
async def publish_batch(stage: Stage) -> None:
    await stage.recorded(
        stage.store.publish_batch(
            [stage.message(), stage.message(ordering_key="key"), stage.message(priority=3)]
        )
    )


@scenario("publish_batch", "three, two queues")
async def publish_batch_to_queues(stage: Stage) -> None:
    other = f"{stage.queue}-other"
    await stage.recorded(
        stage.store.publish_batch([stage.message(), stage.message(queue=other), stage.message()])
    )


in_transactions(
    "publish_batch",
    lambda stage, own: stage.store.publish_batch([stage.message(), stage.message()], transaction=own),
    nothing,
)


# ----------------------------------------------------------------------------------------- claim


@scenario("claim", "of a queue not looked at before, empty")
async def claim_first_empty(stage: Stage) -> None:
    await stage.recorded(stage.claim())


@scenario("claim", "empty")
async def claim_empty(stage: Stage) -> None:
    await stage.publish()
    await stage.settle(await stage.claim(), Done())
    await stage.recorded(stage.claim())


@scenario("claim", "empty, a second later")
async def claim_empty_later(stage: Stage) -> None:
    await stage.publish()
    await stage.settle(await stage.claim(), Done())
    stage.clock.advance(SECOND * 2)
    await stage.recorded(stage.claim())


@scenario("claim", "of a queue not looked at before, three, all there are")
async def claim_first(stage: Stage) -> None:
    await stage.publish_many(3)
    await stage.recorded(stage.claim())


@scenario("claim", "two, all there are")
async def claim_again(stage: Stage) -> None:
    await stage.settle(await stage.claimed(2), Done())
    await stage.publish_many(2)
    await stage.recorded(stage.claim())


@scenario("claim", "two, all there are, a second later")
async def claim_again_later(stage: Stage) -> None:
    await stage.settle(await stage.claimed(2), Done())
    await stage.publish_many(2)
    stage.clock.advance(SECOND * 2)
    await stage.recorded(stage.claim())


@scenario("claim", "two of three, up to the limit")
async def claim_full(stage: Stage) -> None:
    await stage.settle(await stage.claimed(2), Done())
    await stage.publish_many(3)
    await stage.recorded(stage.claim(limit=2))


@scenario("claim", "one of three, up to max_bytes")
async def claim_few_bytes(stage: Stage) -> None:
    await stage.publish_many(3)
    await stage.recorded(
        stage.store.claim([stage.queue], limit=3, lease=LEASE, token=stage.token(), max_bytes=1)
    )


@scenario("claim", "of several priorities")
async def claim_priorities(stage: Stage) -> None:
    for priority in (0, 9, 5):
        await stage.publish(priority=priority)
    await stage.recorded(stage.claim())


@scenario("claim", "of three queues with priorities, one of them empty")
async def claim_queues(stage: Stage) -> None:
    queues = [f"{stage.queue}-{number}" for number in range(3)]
    for queue in queues[:2]:
        for priority in (0, 7):
            await stage.publish(queue=queue, priority=priority)
    await stage.recorded(stage.claim(*queues))


@scenario("claim", "with ordering keys, followers stay")
async def claim_keys(stage: Stage) -> None:
    for key in ("a", "a", "b", "b"):
        await stage.publish(ordering_key=key)
    await stage.recorded(stage.claim())


@scenario("claim", "with ordering keys, all held")
async def claim_held_keys(stage: Stage) -> None:
    for key in ("a", "a", "b", "b"):
        await stage.publish(ordering_key=key)
    await stage.claim()
    await stage.recorded(stage.claim())


@scenario("claim", "with an ordering key that was freed")
async def claim_freed_key(stage: Stage) -> None:
    for _ in range(2):
        await stage.publish(ordering_key="a")
    await stage.settle(await stage.claim(), Done())
    await stage.recorded(stage.claim())


@scenario("claim", "of a message whose lease has expired")
async def claim_expired(stage: Stage) -> None:
    await stage.claimed()
    stage.clock.advance(LEASE * 2)
    await stage.recorded(stage.claim())


@scenario("claim", "of a message that was handed back")
async def claim_released(stage: Stage) -> None:
    await stage.settle(await stage.claimed(), Release())
    await stage.recorded(stage.claim())


@scenario("claim", "of a queue where one is due later")
async def claim_too_early(stage: Stage) -> None:
    await stage.publish(due=HOUR)
    await stage.recorded(stage.claim())


@scenario("recall", "two messages")
async def recall(stage: Stage) -> None:
    deliveries = await stage.claimed(2)
    await stage.recorded(stage.store.recall([stage.queue], deliveries[0].token))


@scenario("recall", "nothing")
async def recall_nothing(stage: Stage) -> None:
    await stage.recorded(stage.store.recall([stage.queue], stage.token()))


@scenario("recall", "nothing, of two queues")
async def recall_queues(stage: Stage) -> None:
    await stage.recorded(stage.store.recall([stage.queue, f"{stage.queue}-other"], stage.token()))


# ---------------------------------------------------------------------------------------- settle


def settles(title: str, *outcomes: Any, count: int = 1, **options: Any) -> None:
    async def play(stage: Stage) -> None:
        await stage.recorded(stage.settle(await stage.claimed(count, **options), *outcomes))

    SCENARIOS.append(Scenario("settle", title, play))


EACH: Final = {
    "done": Done(),
    "retry at once": Retry(),
    "retry later": Retry(HOUR),
    "postpone": Postpone(SECOND),
    "dead": REJECTED,
    "release": Release(),
}
for title, outcome in EACH.items():
    settles(title, outcome)
settles("three done", Done(), count=3)
settles("one of each", *EACH.values(), count=len(EACH))
settles("done, with an ordering key", Done(), ordering_key="key")
settles("retry, with an ordering key", Retry(), ordering_key="key")


@scenario("settle", "none")
async def settle_none(stage: Stage) -> None:
    await stage.recorded(stage.store.settle([]))


@scenario("settle", "a lost one")
async def settle_lost(stage: Stage) -> None:
    deliveries = await stage.claimed()
    await stage.settle(deliveries, Release())
    assert await stage.recorded(stage.settle(deliveries, Done())) == [WriteResult.LOST]


@scenario("settle", "a timer that was superseded, retry")
async def settle_superseded(stage: Stage) -> None:
    await stage.publish(timer_id="timer")
    deliveries = await stage.claim()
    await stage.publish(timer_id="timer", on_conflict="replace")
    await stage.recorded(stage.settle(deliveries, Retry(HOUR)))


def settles_dead(title: str, *outcomes: Any, count: int = 1) -> None:
    async def play(stage: Stage) -> None:
        await stage.recorded(stage.settle(await stage.letters(count), *outcomes))

    SCENARIOS.append(Scenario("settle", f"a dead letter, {title}", play))


for title, outcome in EACH.items():
    settles_dead(title, outcome)
settles_dead("one of each", *EACH.values(), count=len(EACH))


@scenario("extend", "two")
async def extend(stage: Stage) -> None:
    await stage.recorded(stage.store.extend(await stage.claimed(2), LEASE * 2))


@scenario("extend", "a lost one")
async def extend_lost(stage: Stage) -> None:
    deliveries = await stage.claimed()
    await stage.settle(deliveries, Release())
    assert await stage.recorded(stage.store.extend(deliveries, LEASE)) == [WriteResult.LOST]


@scenario("extend", "two dead letters")
async def extend_letters(stage: Stage) -> None:
    await stage.recorded(stage.store.extend(await stage.letters(2), LEASE * 2))


@scenario("run_on_keeper_thread", "one renewal, and the connection for it")
async def run_on_keeper_thread(stage: Stage) -> None:
    deliveries = await stage.claimed()
    loop, renewed = asyncio.get_running_loop(), asyncio.Event()

    async def renew(extend: Extend) -> None:
        assert await extend(deliveries, LEASE * 2) == [WriteResult.WRITTEN]
        loop.call_soon_threadsafe(renewed.set)

    async def work() -> None:
        async with asyncio.timeout(PATIENCE), stage.store.run_on_keeper_thread(renew):
            await renewed.wait()

    await stage.recorded(work())


# ------------------------------------------------------------- a handler's own transaction, leases


def in_handlers(verb: str, ready: Callable[[Stage], Awaitable[Sequence[Delivery]]], title: str) -> None:
    """`hold` or `ack` of what `ready` claimed, in the transaction of a handler."""

    async def joined(stage: Stage) -> None:
        deliveries = await ready(stage)
        async with stage.transaction() as own:
            await stage.recorded(getattr(stage.store, verb)(deliveries, transaction=own))

    async def blocking(stage: Stage) -> None:
        deliveries = await ready(stage)
        with stage.blocking() as own:
            await stage.recorded(getattr(stage.store, verb)(deliveries, transaction=own))

    SCENARIOS.append(Scenario(verb, f"{title}, in a caller's transaction", joined))
    SCENARIOS.append(Scenario(verb, f"{title}, in synchronous code", blocking, "blocking"))


for verb in ("hold", "ack"):
    in_handlers(verb, lambda stage: stage.claimed(2), "two")
    in_handlers(verb, lambda stage: stage.letters(2), "two dead letters")
in_handlers("ack", lambda stage: stage.claimed(1, ordering_key="key"), "one with an ordering key")


@scenario("ack", "two, in a transaction that the store makes")
async def ack_in_own_transaction(stage: Stage) -> None:
    acknowledging = stage.database.acknowledging
    if acknowledging is None:
        return
    deliveries = await stage.claimed(2)

    async def ack() -> None:
        assert acknowledging is not None
        async with acknowledging(stage.store, deliveries) as own:
            await stage.store.ack(deliveries, transaction=own)

    await stage.recorded(ack())


# ---------------------------------------------------------------------------------------- timers


@scenario("cancel", "a waiting timer")
async def cancel(stage: Stage) -> None:
    await a_timer(stage)
    assert await stage.recorded(stage.store.cancel(stage.queue, "timer"))


@scenario("cancel", "a waiting timer with an ordering key and a dedup window")
async def cancel_key(stage: Stage) -> None:
    await stage.publish(timer_id="timer", ordering_key="key", dedup_for=HOUR, due=HOUR)
    assert await stage.recorded(stage.store.cancel(stage.queue, "timer"))


@scenario("cancel", "a running timer")
async def cancel_running(stage: Stage) -> None:
    await stage.publish(timer_id="timer")
    await stage.claim()
    assert not await stage.recorded(stage.store.cancel(stage.queue, "timer"))


@scenario("cancel", "no such timer")
async def cancel_nothing(stage: Stage) -> None:
    assert not await stage.recorded(stage.store.cancel(stage.queue, "timer"))


in_transactions(
    "cancel", lambda stage, own: stage.store.cancel(stage.queue, "timer", transaction=own), a_timer
)


@scenario("cancel_all", "two, one of them a timer")
async def cancel_all(stage: Stage) -> None:
    await stage.publish()
    await a_timer(stage)
    assert await stage.recorded(stage.store.cancel_all(stage.queue)) == 2


@scenario("cancel_all", "at most one of two, one of them a timer")
async def cancel_some(stage: Stage) -> None:
    await stage.publish()
    await a_timer(stage)
    assert await stage.recorded(stage.store.cancel_all(stage.queue, limit=1)) == 1


@scenario("cancel_all", "nothing")
async def cancel_all_nothing(stage: Stage) -> None:
    assert await stage.recorded(stage.store.cancel_all(stage.queue)) == 0


@scenario("cancel_all", "in a caller's transaction")
async def cancel_all_in_transaction(stage: Stage) -> None:
    await a_timer(stage)
    async with stage.transaction() as own:
        await stage.recorded(stage.store.cancel_all(stage.queue, transaction=own))


@scenario("reschedule", "a waiting timer, by a delay")
async def reschedule(stage: Stage) -> None:
    await a_timer(stage)
    assert await stage.recorded(stage.store.reschedule(stage.queue, "timer", SECOND))


@scenario("reschedule", "a waiting timer, to a moment")
async def reschedule_to_moment(stage: Stage) -> None:
    await a_timer(stage)
    assert await stage.recorded(stage.store.reschedule(stage.queue, "timer", stage.clock.now() + HOUR * 2))


@scenario("reschedule", "a running timer")
async def reschedule_running(stage: Stage) -> None:
    await stage.publish(timer_id="timer")
    await stage.claim()
    assert not await stage.recorded(stage.store.reschedule(stage.queue, "timer", SECOND))


in_transactions(
    "reschedule",
    lambda stage, own: stage.store.reschedule(stage.queue, "timer", SECOND, transaction=own),
    a_timer,
)


# -------------------------------------------------------------------------------------- wake-ups


@scenario("listen", "with a connection for it, until another store's message rings; each round trip once")
async def listen(stage: Stage) -> None:
    listener, other = stage.harness.unopened(), stage.harness.unopened()
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        await listener.open()
        stack.push_async_callback(listener.close)
        with stage.record.connections_for(ANOTHER):
            await other.open()
            stack.push_async_callback(other.close)
            await other.publish(stage.message())
        stage.record.clear()
        with listener.listen([stage.queue]) as bell:
            # The first may be rung because something may have been missed before.
            for _ in range(2):
                bell.clear()
                await other.publish(stage.message())
                while not await bell.wait(0.5):
                    await other.publish(stage.message())
            # What some stores do before they rely on being rung.
            while not getattr(listener, "listening", True):  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.01)
        trips = [trip for trip in stage.record.taken() if trip.connection != ANOTHER]
        stage.note([trip for at, trip in enumerate(trips) if trip not in trips[:at]], counted=False)
        await stack.aclose()
        await stage.record.hung_up("listen", ANOTHER)


# ---------------------------------------------------------------------------------- dead letters


@scenario("claim_dead", "empty")
async def claim_dead_empty(stage: Stage) -> None:
    await stage.recorded(stage.claim_dead())


@scenario("claim_dead", "two, all there are")
async def claim_dead(stage: Stage) -> None:
    await stage.died(2)
    await stage.recorded(stage.claim_dead())


@scenario("claim_dead", "one of two, up to the limit")
async def claim_dead_full(stage: Stage) -> None:
    await stage.died(2)
    await stage.recorded(stage.claim_dead(limit=1))


@scenario("claim_dead", "two queues, empty")
async def claim_dead_queues(stage: Stage) -> None:
    queues = [stage.queue, f"{stage.queue}-other"]
    await stage.recorded(stage.store.claim_dead(queues, limit=10, lease=LEASE, token=stage.token()))


@scenario("recall_dead", "two")
async def recall_dead(stage: Stage) -> None:
    letters = await stage.letters(2)
    await stage.recorded(stage.store.recall_dead([stage.queue], letters[0].token))


@scenario("recall_dead", "nothing")
async def recall_dead_nothing(stage: Stage) -> None:
    await stage.recorded(stage.store.recall_dead([stage.queue], stage.token()))


# ------------------------------------------------------------------------------------- operators


@scenario("peek", "a queue")
async def peek(stage: Stage) -> None:
    await stage.publish()
    await stage.recorded(stage.store.peek(stage.queue))


@scenario("peek", "a queue, due before")
async def peek_due_before(stage: Stage) -> None:
    await stage.recorded(stage.store.peek(stage.queue, due_before=stage.clock.now()))


@scenario("peek", "a queue, the next page")
async def peek_next_page(stage: Stage) -> None:
    await stage.publish()
    await stage.publish()
    (first,) = await stage.store.peek(stage.queue, limit=1)
    await stage.recorded(stage.store.peek(stage.queue, cursor=(first.due_at, first.id)))


@scenario("peek", "a timer")
async def peek_timer(stage: Stage) -> None:
    await a_timer(stage)
    await stage.recorded(stage.store.peek(stage.queue, timer_id="timer"))


@scenario("peek", "in a caller's transaction")
async def peek_in_transaction(stage: Stage) -> None:
    async with stage.transaction() as own:
        await stage.recorded(stage.store.peek(stage.queue, transaction=own))


def filtered(verb: str, ask: Callable[[Stage, DeadFilter], Awaitable[Any]]) -> None:
    filters: dict[str, dict[str, Any]] = {
        "of a queue": {},
        "of a queue, by reason": {"reason": "rejected"},
        "of a queue, by error": {"error": "no"},
        "of a queue, by age": {"older_than": HOUR},
    }
    for title, conditions in filters.items():

        async def play(stage: Stage, conditions: dict[str, Any] = conditions) -> None:
            await stage.died(2)
            await stage.recorded(ask(stage, DeadFilter(queue=stage.queue, **conditions)))

        SCENARIOS.append(Scenario(verb, title, play))

    async def by_id(stage: Stage) -> None:
        await stage.died(2)
        letters = await stage.store.dead(DeadFilter(queue=stage.queue))
        await stage.recorded(ask(stage, DeadFilter(ids=tuple(letter.id for letter in letters))))

    # In Redis, an id does not say in which queue the letter is.
    SCENARIOS.append(Scenario(verb, "by id", by_id, whole=True))


filtered("dead", lambda stage, which: stage.store.dead(which))
filtered("summarize_dead", lambda stage, which: stage.store.summarize_dead(which))
filtered("purge", lambda stage, which: stage.store.purge(which, limit=10))


@scenario("dead", "of a queue, the next page")
async def dead_next_page(stage: Stage) -> None:
    await stage.died(2)
    which = DeadFilter(queue=stage.queue)
    (letter,) = await stage.store.dead(which, limit=1)
    await stage.recorded(stage.store.dead(which, limit=1, cursor=letter.id))


def redrives(title: str, *, other_queue: bool = False, keep_timer_ids: bool = True, **options: Any) -> None:
    async def play(stage: Stage) -> None:
        await stage.died(1, **options)
        await stage.died(1)
        letters = await stage.store.dead(DeadFilter(queue=stage.queue))
        to = f"{stage.queue}-other" if other_queue else None
        moved = await stage.recorded(stage.store.redrive(letters, to=to, keep_timer_ids=keep_timer_ids))
        assert moved is not None
        assert len(moved) == 2

    SCENARIOS.append(Scenario("redrive", title, play))


redrives("two")
redrives("two, one with an ordering key", ordering_key="key")
redrives("two, to another queue", other_queue=True)
redrives("two, without names", keep_timer_ids=False)


@scenario("redrive", "none")
async def redrive_none(stage: Stage) -> None:
    await stage.recorded(stage.store.redrive([]))


@scenario("redrive", "a timer")
async def redrive_timer(stage: Stage) -> None:
    await stage.publish(timer_id="timer")
    await stage.settle(await stage.claim(), REJECTED)
    letters = await stage.store.dead(DeadFilter(queue=stage.queue))
    await stage.recorded(stage.store.redrive(letters))


@scenario("purge", "held letters stay")
async def purge_held(stage: Stage) -> None:
    await stage.letters(2)
    await stage.recorded(stage.store.purge(DeadFilter(queue=stage.queue), limit=10))


# ------------------------------------------------------------------------------------ all queues


async def a_bit_of_all(stage: Stage) -> None:
    """One message, one timer, one dead letter and one dedup window that has ended."""
    await stage.publish(timer_id="timer", dedup_for=SECOND)
    await stage.settle(await stage.claim(), Done())
    await stage.died()
    await stage.publish()
    await stage.publish(timer_id="later", due=HOUR)
    stage.clock.advance(SECOND * 2)


@scenario("peek", "all queues", whole=True)
async def peek_all(stage: Stage) -> None:
    await a_bit_of_all(stage)
    await stage.recorded(stage.store.peek())


@scenario("find", "two, one of them gone", whole=True)
async def find(stage: Stage) -> None:
    await a_bit_of_all(stage)
    waiting, *_ = await stage.store.peek()
    await stage.recorded(stage.store.find([waiting.id, waiting.id + 1]))


@scenario("summarize_dead", "of all queues", whole=True)
async def summarize_all(stage: Stage) -> None:
    await a_bit_of_all(stage)
    await stage.recorded(stage.store.summarize_dead(DeadFilter()))


@scenario("dead", "of all queues", whole=True)
async def dead_of_all(stage: Stage) -> None:
    await a_bit_of_all(stage)
    await stage.recorded(stage.store.dead(DeadFilter()))


@scenario("stats", whole=True)
async def stats(stage: Stage) -> None:
    await a_bit_of_all(stage)
    await stage.recorded(stage.store.stats())


@scenario("sweep", "a dead letter and a dedup window", whole=True)
async def sweep(stage: Stage) -> None:
    await a_bit_of_all(stage)
    await stage.recorded(stage.store.sweep(older_than=SECOND, limit=10))


@scenario("sweep", "nothing", whole=True)
async def sweep_nothing(stage: Stage) -> None:
    await stage.recorded(stage.store.sweep(older_than=SECOND, limit=10))


# ------------------------------------------------------------------------------------------ controls


WORKER: Final = WorkerReport(id="0123456789abcdef", host="host", pid=1, version="1", queues=("orders",))


@scenario("pause", "a queue")
async def pause(stage: Stage) -> None:
    await stage.recorded(stage.store.pause(stage.queue, by="ann", until=HOUR))


@scenario("pause", "an ordering key")
async def pause_key(stage: Stage) -> None:
    await stage.recorded(stage.store.pause(stage.queue, ordering_key="key", by="ann"))


@scenario("resume", "a queue")
async def resume(stage: Stage) -> None:
    await stage.store.pause(stage.queue, by="ann")
    await stage.recorded(stage.store.resume(stage.queue))


@scenario("probe_again", "a queue")
async def probe_again(stage: Stage) -> None:
    await stage.publish()
    await stage.store.pause(stage.queue, by="worker", until=SECOND, automatic=True)
    stage.clock.advance(SECOND * 2)
    (probe,) = await stage.claim()
    await stage.recorded(stage.store.probe_again(probe))


@scenario("pauses", "of a queue")
async def pauses(stage: Stage) -> None:
    await stage.store.pause(stage.queue, by="ann")
    await stage.recorded(stage.store.pauses(stage.queue))


@scenario("claim", "of a paused queue")
async def claim_paused(stage: Stage) -> None:
    await stage.publish()
    await stage.store.pause(stage.queue, by="ann")
    await stage.claim()
    assert await stage.recorded(stage.claim()) == []


@scenario("claim", "beside a paused ordering key")
async def claim_beside_paused_key(stage: Stage) -> None:
    await stage.publish(ordering_key="key")
    await stage.publish()
    await stage.store.pause(stage.queue, ordering_key="key", by="ann")
    assert len(await stage.recorded(stage.claim()) or []) == 1


@scenario("claim", "a probe")
async def claim_probe(stage: Stage) -> None:
    await stage.publish()
    await stage.store.pause(stage.queue, by="worker", until=SECOND, automatic=True)
    stage.clock.advance(SECOND * 2)
    assert len(await stage.recorded(stage.claim()) or []) == 1


@scenario("request_stop", "of a running message")
async def request_stop(stage: Stage) -> None:
    (running,) = await stage.claimed()
    assert await stage.recorded(stage.store.request_stop(running.id, by="ann"))


@scenario("report")
async def report(stage: Stage) -> None:
    await stage.store.report(WORKER)
    await stage.recorded(stage.store.report(WORKER))


@scenario("report", "and another is forgotten")
async def report_and_forget(stage: Stage) -> None:
    await stage.store.report(replace(WORKER, id="22" * 8))
    stage.clock.advance(FORGOTTEN_AFTER + SECOND)
    await stage.recorded(stage.store.report(WORKER))


@scenario("sign_off")
async def sign_off(stage: Stage) -> None:
    await stage.store.report(WORKER)
    await stage.recorded(stage.store.sign_off(WORKER.id))


@scenario("workers")
async def workers(stage: Stage) -> None:
    await stage.store.report(WORKER)
    await stage.recorded(stage.store.workers())


@scenario("last_consumers")
async def last_consumers(stage: Stage) -> None:
    await stage.store.report(WORKER)
    await stage.recorded(stage.store.last_consumers())


@scenario("leases", whole=True)
async def leases(stage: Stage) -> None:
    await stage.claimed()
    await stage.recorded(stage.store.leases())


@scenario("facts", "of no message: the clock")
async def the_clock(stage: Stage) -> None:
    await stage.store.publish(stage.message())
    await stage.recorded(stage.store.facts(0))


@scenario("facts", "of a message that is gone")
async def facts_of_a_message_that_is_gone(stage: Stage) -> None:
    (running,) = await stage.claimed()
    await stage.settle([running], Done())
    await stage.recorded(stage.store.facts(running.id))


@scenario("facts", "of a waiting message")
async def facts(stage: Stage) -> None:
    id_ = await stage.store.publish(stage.message(ordering_key="key"))
    assert id_ is not None
    await stage.recorded(stage.store.facts(id_))
