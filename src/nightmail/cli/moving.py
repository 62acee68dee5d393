"""Moves what waits in another library's tables into ours."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Final

from nightmail.cli.stores import opened, url_of
from nightmail.store import FullStore

if TYPE_CHECKING:
    from nightmail.moving import Census, Moved, OldTables

SHOWN: Final = 20
"""How many of the rows that stay are listed."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Its arguments, besides the store."""
    command.add_argument(
        "--from-table", default="outbox", help="their table, or schema.table (default: outbox)"
    )
    command.add_argument("--from-dlq", help="their dead-letter table, if there is one: move it, too")
    command.add_argument("--dry-run", action="store_true", help="only count")
    command.add_argument(
        "--until-empty",
        action="store_true",
        help="go on until the old tables are empty, instead of passing once",
    )
    command.add_argument(
        "--lease-ttl",
        type=float,
        metavar="SECONDS",
        help="also take rows whose lease is older than this: the longest lease_ttl_seconds of the old subscribers "
        "(default: leave every leased row to the old workers)",
    )


async def move_from_faststream_outbox(store: FullStore, given: argparse.Namespace) -> int:
    """Move what waits in the tables of faststream-outbox into this store, in the same Postgres database."""
    if store.capabilities.name != "postgres":
        raise ValueError(
            "rows move inside one Postgres database: the store's URL must start with postgresql://"
        )
    # Not at the top: it needs the driver, which other stores do not need.
    from nightmail.moving import Mover, OldTables

    lease_ttl = None if given.lease_ttl is None else timedelta(seconds=given.lease_ttl)
    old = OldTables(messages=given.from_table, dead=given.from_dlq)
    mover = Mover(url_of(given), store, old, tables=given.tables, lease_ttl=lease_ttl)
    async with opened(store), mover:
        await store.check()
        await mover.check()
        census = await mover.count()
        _print_census(census, old)
        if given.dry_run:
            print("nothing was changed")
            return 0
        tell = _every_second(census.rows)
        moved = await (mover.move_all(tell) if given.until_empty else mover.move(tell))
        left = await mover.count()
    return _conclude(moved, left, old)


def _print_census(census: Census, old: OldTables) -> None:
    for queue, stands in census.queues.items():
        held = f", {stands.leased} leased by old workers" if stands.leased else ""
        taken = f", {stands.taken} of them with a timer id that is taken here" if stands.taken else ""
        print(f"{old.messages}, queue {queue!r}: {stands.waiting} waiting{taken}{held}")
    if not census.queues:
        print(f"{old.messages}: empty")
    if old.dead is not None:
        print(f"{old.dead}: {census.dead} dead letters")


def _every_second(rows: int) -> Callable[[Moved], None]:
    said_at = monotonic()

    def tell(moved: Moved) -> None:
        nonlocal said_at
        if monotonic() - said_at >= 1:
            said_at = monotonic()
            print(f"{moved.messages + moved.dead} of about {rows} moved", flush=True)

    return tell


def _conclude(moved: Moved, left: Census, old: OldTables) -> int:
    """Say how it ended; 0 only when the old tables are empty, so that nothing is dropped with them."""
    dead = f", dead letters: {moved.dead}" if old.dead is not None else ""
    print(f"moved messages: {moved.messages}{dead}")
    if not left.rows:
        print("nothing is left there")
        return 0
    leased = sum(stands.leased for stands in left.queues.values())
    print(f"left there: {left.rows}, of these leased by old workers: {leased}")
    for stuck in moved.stuck[:SHOWN]:
        print(f"  row {stuck.id} of queue {stuck.queue!r} stays: {stuck.why}")
    if len(moved.stuck) > SHOWN:
        print(f"  and {len(moved.stuck) - SHOWN} more")
    return 1
