"""Breaks the product on purpose: a suite that cannot fail shows nothing.

Each is a mistake that a queue can have, and names the scenario that must find it and the rule that must say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from nightmail.message import Message
from nightmail.outcome import Done, Release, Retry, WriteResult
from nightmail.store import Extend, FullStore, Settlement
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql import statements
from nightmail.stores.sqlite.pausing import Paused

TOO_LATE_SECONDS: Final = 0.3

_background: Final[set[asyncio.Task[object]]] = set()


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


def without_timer_ids(store: Any) -> None:
    """A publish that is repeated is stored again."""
    publish = store.publish

    async def forgetful(message: Message, **options: Any) -> int | None:
        forgotten = replace(message, timer_id=None, dedup_for=None)
        return await publish(forgotten, **options)  # type: ignore[no-any-return]  # It is a store's.

    store.publish = forgetful


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
            publisher=without_timer_ids,
        ),
        Breakage(
            name="claimed-while-paused",
            scenario="paused",
            store="sqlite",
            rules=("obeys_pauses",),
            product=claimed_while_paused,
        ),
    )
}


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
