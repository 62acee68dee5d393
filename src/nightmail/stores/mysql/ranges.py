"""The condition that a message is within a range of due times."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from nightmail.stores.mysql.text import ALWAYS, Sql, literal
from nightmail.stores.shared.marks import Range

Place: TypeAlias = tuple[datetime, int]
"""A due time and an id: settled messages stay in the index until InnoDB purges them, many with one due time."""


def within(range_: Range[Place]) -> Sql:
    """The condition. In this form the server makes a range of each side of the `or`, and reads nothing else."""
    sides = [
        f"(m.due_at {inside} {literal(at)} or (m.due_at = {literal(at)} and m.id {end} {id_}))"
        for place, inside, end in ((range_.start, ">", ">="), (range_.end, "<", "<"))
        if place is not None
        for at, id_ in (place,)
    ]
    return Sql(f"({' and '.join(sides)})") if sides else ALWAYS


def after(range_: Range[Place], place: Place) -> Range[Place]:
    """The part of this range after a position."""
    due_at, id_ = place
    return replace(range_, start=(due_at, id_ + 1))
