"""Moves what waits in another library's tables into ours."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

import typer

from nightmail.cli import audit
from nightmail.cli.exit_codes import DONE, INCOMPLETE, Refusal
from nightmail.cli.progress import Counter
from nightmail.cli.running import Session, on_store

if TYPE_CHECKING:
    from nightmail.moving import Census, Moved, OldTables

SHOWN: Final = 20
"""How many of the rows that stay are listed."""


@on_store(positional=True, changes=True)
async def move_outbox(
    session: Session,
    from_table: Annotated[
        str, typer.Option(metavar="TABLE", help="Their table, or schema.table.")
    ] = "outbox",
    from_dlq: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="Their dead-letter table, if there is one: move it, too."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    until_empty: Annotated[
        bool,
        typer.Option("--until-empty", help="Go on until the old tables are empty, instead of passing once."),
    ] = False,
    lease_ttl: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Also take rows whose lease is older than this: the longest lease_ttl_seconds of the old subscribers. "
            "Default: leave every leased row to the old workers.",
        ),
    ] = None,
) -> int:
    """Move what waits in the tables of faststream-outbox into this store, in the same Postgres database."""
    store, address = session.chosen.store, session.chosen.address
    if address is None:
        raise Refusal("this needs the database's URL: it opens a connection of its own, beside the store's")
    if store.capabilities.name != "postgres":
        raise ValueError(
            "rows move inside one Postgres database: the store's URL must start with postgresql://"
        )
    # Not at the top: it needs the driver, which other stores do not need.
    from nightmail.moving import Mover, OldTables

    lease = None if lease_ttl is None else timedelta(seconds=lease_ttl)
    old = OldTables(messages=from_table, dead=from_dlq)
    mover = Mover(address.url, store, old, tables=address.tables, lease_ttl=lease)
    async with session.chosen.opened(), mover:
        await store.check()
        await mover.check()
        census = await mover.count()
        _print_census(census, old)
        if dry_run:
            print("nothing was changed")
            return DONE
        tell = _Teller(census.rows)
        with audit.counted(session, "move-outbox", tell):
            moved = await (mover.move_all(tell.batch) if until_empty else mover.move(tell.batch))
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


class _Teller(Counter):
    """Says how far it is, at most once a second."""

    def __init__(self, rows: int) -> None:
        super().__init__("moved", rows)
        self._said_at = monotonic()

    def batch(self, moved: Moved) -> None:
        """So much has moved."""
        self(moved.messages + moved.dead)
        if monotonic() - self._said_at >= 1:
            self._said_at = monotonic()
            print(f"{self.done} of about {self.total} moved", flush=True)


def _conclude(moved: Moved, left: Census, old: OldTables) -> int:
    """Say how it ended; 0 only when the old tables are empty, so that nothing is dropped with them."""
    dead = f", dead letters: {moved.dead}" if old.dead is not None else ""
    print(f"moved messages: {moved.messages}{dead}")
    if not left.rows:
        print("nothing is left there")
        return DONE
    leased = sum(stands.leased for stands in left.queues.values())
    print(f"left there: {left.rows}, of these leased by old workers: {leased}")
    for stuck in moved.stuck[:SHOWN]:
        print(f"  row {stuck.id} of queue {stuck.queue!r} stays: {stuck.why}")
    if len(moved.stuck) > SHOWN:
        print(f"  and {len(moved.stuck) - SHOWN} more")
    return INCOMPLETE
