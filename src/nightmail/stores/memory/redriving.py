"""Move dead letters back to queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from nightmail.records import DeadLetter
from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.letters import Letter
from nightmail.stores.memory.rows import Row
from nightmail.stores.shared.provenance import redriven_headers


def redrive(
    changes: Changes, records: Sequence[DeadLetter], *, to: str | None, keep_timer_ids: bool, now: datetime
) -> list[int]:
    """Move these dead letters by the rules of `Inspection.redrive`; returns the ids of the new messages."""
    letters = _free(changes, records, now)
    names = {letter.id: _name(letter, to) if keep_timer_ids else None for letter in letters}
    # Later ones overwrite earlier ones: of several with one timer id, the last gets it.
    owners = {name: id_ for id_, name in names.items()}
    ids: list[int] = []
    for letter in letters:
        name = names[letter.id]
        if name is not None and (owners[name] != letter.id or _taken(changes, name)):
            continue
        row = Row.redriven(
            letter.record,
            id_=changes.new_id(),
            queue=letter.queue if to is None else to,
            timer_id=None if name is None else letter.record.timer_id,
            encoded_headers=redriven_headers(letter.record),
            now=now,
        )
        changes.remove_letter(letter)
        changes.store(row, now)
        ids.append(row.id)
    return ids


def _free(changes: Changes, records: Iterable[DeadLetter], now: datetime) -> list[Letter]:
    """Those that still exist and are not leased, each once."""
    found = {record.id: changes.letter(record.queue, record.id) for record in records}
    return [letter for letter in found.values() if letter is not None and not letter.held(now)]


def _name(letter: Letter, to: str | None) -> tuple[str, str] | None:
    """The queue that the dead letter would go to, and its timer id there."""
    timer_id = letter.record.timer_id
    return None if timer_id is None else (letter.queue if to is None else to, timer_id)


def _taken(changes: Changes, name: tuple[str, str]) -> bool:
    queue, timer_id = name
    return changes.queue(queue).owner_of(timer_id) is not None
