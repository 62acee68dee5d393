"""Who consumes messages, what each holds, and how one is stopped."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from nightmail.cli.exit_codes import NOT_FOUND, Refusal
from nightmail.cli.messages import check_id
from nightmail.cli.operator import By, named
from nightmail.cli.output import plain
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import safe
from nightmail.controls import LeasedMessage, WorkerRecord
from nightmail.operations.liveness import is_live, subscribers, total
from nightmail.wording import count, length

_COLUMNS = ("host", "pid", "state", "version", "up for", "queues", "busy", "holds", "longest")


@on_store(json=True)
async def workers(session: Session) -> None:
    """Show the processes that consume messages: whether they live, which queues they consume, and what they hold."""
    async with session.chosen.ready() as store:
        # An id that no message has: what is asked for is the store's clock.
        now = (await store.facts(0)).now
        found = await store.workers()
        leases = await store.leases()
    held = {each.id: [lease for lease in leases if lease.worker_id == each.id] for each in found}
    if session.out.as_json:
        session.out.json(
            [{**plain(each), "live": is_live(each, now), "leases": held[each.id]} for each in found]
        )
        return
    if not found:
        session.out.note("no worker has reported within a day: is the service running, on this store?")
    else:
        session.out.table(
            _COLUMNS, [_row(each, held[each.id], now) for each in found], right=frozenset({"pid", "holds"})
        )
    known = {each.id for each in found}
    if strangers := sum(lease.worker_id not in known for lease in leases):
        session.out.note(f"{count(strangers)} more running, held by processes that do not report themselves")


def _row(worker: WorkerRecord, held: list[LeasedMessage], now: datetime) -> list[object]:
    state = "live" if is_live(worker, now) else f"last seen {length(now - worker.seen_at)} ago"
    longest = held[0] if held else None
    return [
        worker.host,
        worker.pid,
        state,
        worker.version,
        length(now - worker.started_at),
        ", ".join(worker.queues),
        _busy(worker),
        count(len(held)),
        "-" if longest is None else f"{longest.id}, for {length(now - longest.claimed_at)}",
    ]


def _busy(worker: WorkerRecord) -> str:
    """How many of its handlers run, of how many."""
    said = subscribers(worker)
    slots = int(total(said, "max_workers"))
    return f"{int(total(said, 'running'))} of {slots}" if slots else "-"


@on_store()
async def stop(
    session: Session,
    id_: Annotated[int, typer.Argument(metavar="ID", help="The id of a message that runs.")],
    by: By = None,
) -> None:
    """End a running handler, wherever it runs. Its message becomes a dead letter with the reason "stopped"."""
    check_id(id_)
    async with session.chosen.ready() as store:
        if not await store.request_stop(id_, by=named(by)):
            raise Refusal(f"message {id_} does not run. `nightmail why {id_}` says where it is", NOT_FOUND)
        holder = (await store.facts(id_)).worker_id
        found = next((each for each in await store.workers() if each.id == holder), None)
    where = "its worker" if found is None else f"{safe(found.host)}/{found.pid}"
    session.out.say(f"{where} is asked to stop message {id_}")
    session.out.note(
        f"it hears of it when it next renews the lease, within seconds; `nightmail why {id_}` shows how it ended"
    )
