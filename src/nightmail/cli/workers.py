"""Who consumes messages, what each holds, and how one is stopped."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from nightmail.cli import audit
from nightmail.cli.exit_codes import NOT_FOUND, Refusal
from nightmail.cli.messages import check_id
from nightmail.cli.operator import By, named
from nightmail.cli.output import plain
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import safe
from nightmail.controls import WorkerRecord
from nightmail.operations import workers as asking
from nightmail.operations.liveness import last_seen, name_of, subscribers, total
from nightmail.operations.workers import WorkerHoldings, Workforce
from nightmail.wording import count, length

_COLUMNS = ("host", "pid", "state", "version", "up for", "queues", "busy", "holds", "longest")


@on_store(json=True)
async def workers(session: Session) -> None:
    """Show the processes that consume messages: whether they live, which queues they consume, and what they hold."""
    async with session.chosen.ready() as store:
        found = await asking.workforce(store)
    if session.out.as_json:
        session.out.json(
            {
                "workers": [
                    {**plain(each.worker), "live": each.live, "leases": each.holds} for each in found.workers
                ],
                "last_consumers": [
                    {"queue": queue, **plain(each)} for queue, each in sorted(found.last_consumers.items())
                ],
            }
        )
        return
    if not found.workers:
        session.out.note(f"no worker is running: {safe(_last_seen(found))}. Does the service use this store?")
    else:
        session.out.table(
            _COLUMNS, [_row(each, found.now) for each in found.workers], right=frozenset({"pid", "holds"})
        )
    if strangers := len(found.unregistered):
        session.out.note(f"{count(strangers)} more running, held by processes that do not report themselves")


def _row(found: WorkerHoldings, now: datetime) -> list[object]:
    worker = found.worker
    longest = found.holds[0] if found.holds else None
    return [
        worker.host,
        worker.pid,
        "live" if found.live else f"last seen {length(now - worker.seen_at)} ago",
        worker.version,
        length(now - worker.started_at),
        ", ".join([*worker.queues, *_dead_letters(worker)]),
        _busy(worker),
        count(len(found.holds)),
        "-" if longest is None else f"{longest.id}, for {length(now - longest.claimed_at)}",
    ]


def _dead_letters(worker: WorkerRecord) -> list[str]:
    """The queues whose dead letters it looks after."""
    said = [each.get("queues") for each in subscribers(worker) if each.get("dead_letters")]
    names = {str(queue) for queues in said if isinstance(queues, list) for queue in queues}
    return [f"dead letters of {name}" for name in sorted(names)]


def _last_seen(found: Workforce) -> str:
    last = max(found.last_consumers.items(), key=lambda each: each[1].seen_at, default=None)
    if last is None:
        return last_seen(None, None)
    queue, consumer = last
    return f"{last_seen(name_of(consumer), found.now - consumer.seen_at)}, which consumed {queue}"


def _busy(worker: WorkerRecord) -> str:
    """How many of its handlers run, of how many."""
    said = subscribers(worker)
    slots = int(total(said, "max_workers"))
    return f"{int(total(said, 'running'))} of {slots}" if slots else "-"


@on_store(changes=True)
async def stop(
    session: Session,
    id_: Annotated[int, typer.Argument(metavar="ID", help="The id of a message that runs.")],
    by: By = None,
) -> None:
    """End a running handler, wherever it runs. Its message becomes a dead letter with the reason "stopped"."""
    check_id(id_)
    async with session.chosen.ready(adopt=True) as store:
        if not await store.request_stop(id_, by=named(by)):
            raise Refusal(f"message {id_} does not run. `nightmail why {id_}` says where it is", NOT_FOUND)
        audit.changed(session, "stop", by=by, ids=[id_])
        holder = (await store.facts(id_)).worker_id
        found = next((each for each in await store.workers() if each.id == holder), None)
    where = "its worker" if found is None else f"{safe(found.host)}/{found.pid}"
    session.out.say(f"{where} is asked to stop message {id_}")
    session.out.note(
        f"it hears of it when it next renews the lease, within seconds; `nightmail why {id_}` shows how it ended"
    )
