"""The threads of an open store."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import Final

from nightmail.stores.sqlite.connect import connect, create_file, look_at_file
from nightmail.stores.sqlite.keeper import Keeper, Renewals, keeper
from nightmail.stores.sqlite.leases import Leases
from nightmail.stores.sqlite.line import SLICE_SECONDS
from nightmail.stores.sqlite.thread import ConnectionThread
from nightmail.stores.sqlite.watch import WakeupPoller

_READER_STOP_SECONDS: Final = 1.0
"""Operators' reads that take longer are not worth waiting for when the store is closed."""


class Threads:
    """One writes and one reads, each with a connection; one keeps leases while there are any to keep."""

    def __init__(self, file: str, tower: WakeupPoller, leases: Leases) -> None:
        self._file = file
        connect_to_write = partial(connect, file, busy_seconds=SLICE_SECONDS)
        self.writer = ConnectionThread("writer", connect_to_write, tower, file=file)
        self.reader = ConnectionThread("reader", partial(connect, file, checkpoints=False), file=file)
        self.keeper: Keeper = keeper(Renewals(self.writer, leases, connect_to_write, file))

    @property
    def usable(self) -> bool:
        """Whether they take work."""
        return self.writer.usable

    async def connect(self) -> None:
        """Make the connections, so that what is wrong with them is known at once.

        Without a file there is nothing to connect to: only making the tables makes one.
        """
        if look_at_file(self._file):
            await self.writer.read(_nothing)
            await self.reader.read(_nothing)

    def create_file(self) -> None:
        """Create the file if there is none."""
        create_file(self._file)

    async def stop(self) -> None:
        """End them."""
        # The writer last: whoever closes the last connection copies the write-ahead log back into the file.
        try:
            await self.keeper.close()
            await self.reader.stop(_READER_STOP_SECONDS)
        finally:
            await self.writer.stop()


def _nothing(connection: sqlite3.Connection) -> None:
    """Being called means being connected."""
