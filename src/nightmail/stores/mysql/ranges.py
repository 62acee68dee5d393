"""The condition that a message is within a range of due times."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

from nightmail.stores._marks import Range
from nightmail.stores.mysql.text import ALWAYS, Sql, literal

Place: TypeAlias = tuple[datetime, int]
"""A due time and an id: settled messages stay in the index until they are purged, many of one due time among them."""


def within(range_: Range[Place]) -> Sql:
    """The condition. In this form the server makes one range of each side of the `or`, and reads nothing else."""
    if range_.start is not None:
        at, id_ = literal(range_.start[0]), range_.start[1]
        return Sql(f"(m.due_at > {at} or (m.due_at = {at} and m.id >= {id_}))")
    if range_.end is not None:
        at, id_ = literal(range_.end[0]), range_.end[1]
        return Sql(f"(m.due_at < {at} or (m.due_at = {at} and m.id < {id_}))")
    return ALWAYS
