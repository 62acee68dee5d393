"""Copies large bodies between tables in chunks."""

from __future__ import annotations

import sqlite3
from typing import Final

from nightmail.stores.sqlite.queries import Direct

_PIECE: Final = 1024 * 1024


def copy_body(prefix: str, *, message: int, letter: int) -> Direct:
    """Copy the body of a message into a dead letter, where space for it is reserved.

    A body may be half a gigabyte. In a statement SQLite would hold all of it in memory, twice.
    """

    def copy(connection: sqlite3.Connection) -> None:
        with (
            connection.blobopen(f"{prefix}_messages", "body", message, readonly=True) as source,
            connection.blobopen(f"{prefix}_dead", "body", letter) as target,
        ):
            if len(source) != len(target):
                return  # Text, which the statement has copied.
            while piece := source.read(_PIECE):
                target.write(piece)

    return Direct(copy)
