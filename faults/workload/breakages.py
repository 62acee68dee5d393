"""Breaks the product on purpose: a suite that cannot fail shows nothing.

Each is a mistake that a queue can have, and names the scenario that must find it and the rule that must say so.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from faults.workload.config import Kind
from nightmail.bell import Bell
from nightmail.engine import sorting
from nightmail.engine.attempt import Attempt
from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, Done, Reason, Release, Retry, WriteResult
from nightmail.store import Claimed, Extend, FullStore, Settlement
from nightmail.stores.shared.opening import Origin
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql import statements
from nightmail.stores.sqlite.pausing import Paused

TOO_LATE_SECONDS: Final = 0.3
MUCH_TOO_LATE_SECONDS: Final = 12.0
SLOW_STOP_SECONDS: Final = 5.0
DEAF_FOR: Final = timedelta(minutes=1)

_background: Final[set[asyncio.Task[object]]] = set()


NOW_AND_THEN: Final = 0.3
"""How often what happens at times happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """A mistake."""

    name: str
    scenario: str
    store: str
    rules: tuple[str, ...]
    """One of these must find it."""
    product: Callable[[], None] | None = None
    """Breaks the library, before a worker opens a store."""
    worker: Callable[[Any], None] | None = None
    """Breaks the store of a worker."""
    publisher: Callable[[Any], None] | None = None
    kinds: tuple[Kind, ...] = ()
    """What is published, if the usual kinds have too few of those that it hits."""
    faults: int | None = None
    """How many, if those of a run of the scenario alone are too few."""


def acknowledged_before_commit(store: Any) -> None:
    """A publish returns before the message is stored."""
    publish = store.publish

    async def too_soon(message: Message, **options: Any) -> int | None:
        if options.get("transaction") is not None:
            return await publish(message, **options)  # type: ignore[no-any-return]  # It is a store's.

        async def later() -> None:
            await asyncio.sleep(TOO_LATE_SECONDS)
            await publish(message, **options)

        task: asyncio.Task[object] = asyncio.create_task(later())
        _background.add(task)
        return None

    store.publish = too_soon


def published_without(**options_of_it: Any) -> Callable[[Any], None]:
    """What a message is published with gets lost on its way."""

    def broken(store: Any) -> None:
        publish = store.publish

        async def forgetful(message: Message, **options: Any) -> int | None:
            forgotten = replace(message, **options_of_it)
            return await publish(forgotten, **options)  # type: ignore[no-any-return]  # It is a store's.

        store.publish = forgetful

    return broken


def at_times_raises(error: Callable[[], Exception]) -> Callable[[Any], None]:
    """A publish stores its message, and at times says something else."""

    def broken(store: Any) -> None:
        publish = store.publish

        async def wrong(message: Message, **options: Any) -> int | None:
            stored: int | None = await publish(message, **options)
            if options.get("transaction") is None and random.random() < NOW_AND_THEN:
                raise error()
            return stored

        store.publish = wrong

    return broken


def leased_for(times: float) -> Callable[[Any], None]:
    """The store gives another lease than it was asked for."""

    def broken(store: Any) -> None:
        claim = store.claim

        async def wrong(queues: Sequence[str], *, lease: timedelta, **options: Any) -> Claimed:
            return await claim(queues, lease=lease * times, **options)  # type: ignore[no-any-return]  # It is a store's.

        store.claim = wrong

    return broken


def with_every_claim(change: Callable[[Claimed], Claimed]) -> Callable[[Any], None]:
    """What a claim brings is changed."""

    def broken(store: Any) -> None:
        claim = store.claim

        async def wrong(queues: Sequence[str], **options: Any) -> Claimed:
            return change(await claim(queues, **options))

        store.claim = wrong

    return broken


def twice(claimed: Claimed) -> Claimed:
    """The first message is there twice."""
    return replace(claimed, deliveries=(*claimed.deliveries[:1], *claimed.deliveries))


def for_the_first_time(claimed: Claimed) -> Claimed:
    """Nobody counts how many workers a message has cost."""
    return replace(claimed, deliveries=tuple(replace(each, deliveries=1) for each in claimed.deliveries))


def never_claimed(store: Any) -> None:
    """One queue is forgotten."""
    claim = store.claim

    async def wrong(queues: Sequence[str], **options: Any) -> Claimed:
        known = [queue for queue in queues if queue != "thread"]
        return await claim(known, **options) if known else Claimed((), None)

    store.claim = wrong


def late_after_an_outage(store: Any) -> None:
    """A claim that failed is not tried again for long."""
    claim = store.claim

    async def wrong(queues: Sequence[str], **options: Any) -> Claimed:
        try:
            return await claim(queues, **options)  # type: ignore[no-any-return]  # It is a store's.
        except StoreUnavailable:
            await asyncio.sleep(MUCH_TOO_LATE_SECONDS)
            raise

    store.claim = wrong


def acks_nothing(store: Any) -> None:
    """An ack in a handler's transaction is forgotten."""

    async def nothing(_deliveries: Sequence[Delivery], *, transaction: object) -> None:
        pass

    store.ack = nothing


def closed_late(store: Any) -> None:
    """A stop takes long."""
    close = store.close

    async def late() -> None:
        await asyncio.sleep(SLOW_STOP_SECONDS)
        await close()

    store.close = late


def a_failure_is_done() -> None:
    """What should be retried is written as done."""
    setattr(Attempt, "_retry", lambda *_: Done())  # noqa: B010 - mypy refuses the assignment


def given_up_at_once() -> None:
    """What should be retried is a dead letter."""
    setattr(Attempt, "_retry", lambda *_: Dead(Reason.RETRIES_EXHAUSTED))  # noqa: B010 - mypy refuses the assignment


def without_quarantine() -> None:
    """Nothing runs alone, however many processes it has cost."""
    setattr(sorting, "is_quarantined", lambda _: False)  # noqa: B010 - mypy refuses the assignment


def deaf(store: Any) -> None:
    """It hears of nothing, and looks every minute."""
    listen = store.listen

    def unheard(queues: Sequence[str]) -> Bell:
        bell: Bell = listen(queues)
        setattr(bell, "ring", lambda: None)  # noqa: B010 - mypy refuses the assignment
        return bell

    store.listen = unheard
    setattr(type(store), "look_interval", property(lambda _: DEAF_FOR))  # noqa: B010 - the same


def used_in_a_child() -> None:
    """A child is not refused its parent's store."""
    setattr(Origin, "refuse_elsewhere", lambda _origin: None)  # noqa: B010 - mypy refuses the assignment


def not_fenced() -> None:
    """A settlement and a renewal do not ask whose lease it is."""
    named = statements.with_names

    def unfenced(text: str, names: TableNames) -> str:
        for condition in (
            "AND hex(m.token) = json_extract(lease.value, '$[1]')",
            "AND hex(m.token) = claim.key",
        ):
            text = text.replace(condition, "")
        return named(text, names)

    statements.with_names = unfenced


def never_renewed(store: Any) -> None:
    """No lease is renewed while its handler runs."""
    run_on_keeper_thread = store.run_on_keeper_thread

    def idle(_work: Callable[[Extend], Awaitable[None]], **options: Any) -> AbstractAsyncContextManager[None]:
        async def nothing(_extend: Extend) -> None:
            await asyncio.Event().wait()

        return run_on_keeper_thread(nothing, **options)  # type: ignore[no-any-return]  # It is a store's.

    store.run_on_keeper_thread = idle


def a_stop_is(outcome: Done | Retry) -> Callable[[Any], None]:
    """What a stop should hand back is written as something else."""

    def broken(store: Any) -> None:
        settle = store.settle

        async def wrong(batch: Sequence[Settlement]) -> list[WriteResult]:
            changed = [
                replace(each, outcome=outcome) if isinstance(each.outcome, Release) else each
                for each in batch
            ]
            return await settle(changed)  # type: ignore[no-any-return]  # It is a store's.

        store.settle = wrong

    return broken


def claimed_while_paused() -> None:
    """A claim does not ask what is paused."""
    setattr(Paused, "open", lambda _paused, queues: queues)  # noqa: B010 - mypy refuses the assignment


BREAKAGES: Final = {
    breakage.name: breakage
    for breakage in (
        Breakage(
            name="acknowledged-before-commit",
            scenario="kills",
            store="sqlite",
            rules=("nothing_lost",),
            publisher=acknowledged_before_commit,
        ),
        Breakage(name="not-fenced", scenario="pauses", store="sqlite", rules=("fenced",), product=not_fenced),
        Breakage(
            name="never-renewed",
            scenario="blocked",
            store="sqlite",
            rules=("no_needless_duplicate",),
            worker=never_renewed,
        ),
        Breakage(
            name="never-renewed-at-all",
            scenario="blocked",
            store="sqlite",
            rules=("duplicates_bounded",),
            worker=never_renewed,
        ),
        Breakage(
            name="a-stop-is-done",
            scenario="stops",
            store="sqlite",
            rules=("nothing_lost",),
            worker=a_stop_is(Done()),
        ),
        Breakage(
            name="a-stop-is-a-failure",
            scenario="stops",
            store="sqlite",
            rules=("counters",),
            worker=a_stop_is(Retry(timedelta(0))),
        ),
        Breakage(
            name="without-timer-ids",
            scenario="lost-replies",
            store="redis",
            rules=("timer_ids",),
            publisher=published_without(timer_id=None, dedup_for=None),
            kinds=("timer",),
        ),
        Breakage(
            name="claimed-while-paused",
            scenario="paused",
            store="sqlite",
            rules=("obeys_pauses",),
            product=claimed_while_paused,
        ),
        Breakage(
            name="stored-and-refused",
            scenario="kills",
            store="sqlite",
            rules=("no_phantom",),
            publisher=at_times_raises(StoreUnavailable),
        ),
        Breakage(
            name="a-raw-error",
            scenario="kills",
            store="sqlite",
            rules=("ends_well",),
            publisher=at_times_raises(OSError),
        ),
        Breakage(
            name="used-in-a-child",
            scenario="forks",
            store="sqlite",
            rules=("ends_well",),
            product=used_in_a_child,
        ),
        Breakage(
            name="without-ordering-keys",
            scenario="kills",
            store="sqlite",
            rules=("in_order",),
            publisher=published_without(ordering_key=None),
        ),
        Breakage(
            name="without-delay",
            scenario="kills",
            store="sqlite",
            rules=("never_early",),
            publisher=published_without(due=None),
        ),
        Breakage(
            name="short-leases",
            scenario="kills",
            store="sqlite",
            rules=("one_lease",),
            worker=leased_for(0.25),
        ),
        Breakage(
            name="long-leases",
            scenario="kills",
            store="sqlite",
            rules=("taken_over",),
            worker=leased_for(6),
        ),
        Breakage(
            name="claimed-twice",
            scenario="kills",
            store="sqlite",
            rules=("runs_once",),
            worker=with_every_claim(twice),
        ),
        Breakage(
            name="deliveries-not-counted",
            scenario="poison",
            store="sqlite",
            rules=("poison_alone",),
            worker=with_every_claim(for_the_first_time),
        ),
        Breakage(
            name="without-quarantine",
            scenario="poison",
            store="sqlite",
            rules=("poison_alone",),
            product=without_quarantine,
            faults=3,
        ),
        Breakage(
            name="never-claimed",
            scenario="kills",
            store="sqlite",
            rules=("delivered",),
            worker=never_claimed,
        ),
        Breakage(
            name="late-after-an-outage",
            scenario="crashes",
            store="redis",
            rules=("used_again",),
            worker=late_after_an_outage,
        ),
        Breakage(
            name="acks-nothing",
            scenario="kills",
            store="sqlite",
            rules=("effects_once",),
            worker=acks_nothing,
        ),
        Breakage(
            name="closed-late",
            scenario="stops",
            store="sqlite",
            rules=("stops_in_time",),
            worker=closed_late,
        ),
        Breakage(
            name="a-failure-is-done",
            scenario="kills",
            store="sqlite",
            rules=("right_outcome",),
            product=a_failure_is_done,
        ),
        Breakage(
            name="given-up-at-once",
            scenario="kills",
            store="sqlite",
            rules=("right_outcome",),
            product=given_up_at_once,
        ),
        Breakage(
            name="deaf",
            scenario="wakeups",
            store="redis",
            rules=("picked_up",),
            worker=deaf,
        ),
    )
}

WITHOUT: Final[dict[str, str]] = {
    "nothing_vanishes": "what loses a message loses those that were acknowledged too, and they are many more",
}
"""The rules that no breakage is found by, each with the reason."""


def break_product(name: str | None) -> None:
    """Break the library in this process."""
    if name is not None and (broken := BREAKAGES[name].product) is not None:
        broken()


def break_worker(store: FullStore, name: str | None) -> None:
    """Break what this worker does."""
    if name is not None and (broken := BREAKAGES[name].worker) is not None:
        broken(store)


def break_publisher(store: FullStore, name: str | None) -> None:
    """Break what this publisher does."""
    if name is not None and (broken := BREAKAGES[name].publisher) is not None:
        broken(store)
