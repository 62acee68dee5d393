"""Redrives dead letters as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nightmail.clock import Clock
from nightmail.records import DeadLetter
from nightmail.stores.shared.provenance import redriven_headers
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Change, Verb


class Redriving:
    """The verb redrive: one round trip for any number of dead letters."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statement = statements["redrive"]
        self._clock = clock

    def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None, keep_timer_ids: bool
    ) -> Verb[Change[list[int]]]:
        """See `Inspection.redrive`."""
        # A dead letter given twice takes its last place, as a timer id goes to the last one that has it.
        places = {letter.id: place for place, letter in enumerate(letters)}
        ids = sorted(places)
        values = {
            "now": self._clock.now(),
            "to": to,
            "keep_timer_ids": keep_timer_ids,
            "ids": ids,
            "places": [places[id_] for id_ in ids],
            "headers": [redriven_headers(letters[places[id_]]) for id_ in ids],
        }
        (row,) = yield Ask(self._statement, values)
        return Change(row["ids"])
