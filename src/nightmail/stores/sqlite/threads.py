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
"""Operators' reads that take longer are interrupted when the store closes."""


class Threads:
    """A writer and a reader, each with a connection, and a keeper that runs while there are leases to renew."""

    def __init__(self, file: str, tower: WakeupPoller, leases: Leases) -> None:
        self._file = file
        connect_to_write = partial(connect, file, busy_seconds=SLICE_SECONDS)
        self.writer = ConnectionThread("writer", connect_to_write, tower, file=file)
        self.reader = ConnectionThread("reader", partial(connect, file, checkpoints=False), file=file)
        self.keeper: Keeper = keeper(Renewals(self.writer, leases, connect_to_write, file))

    @property
    def usable(self) -> bool:
        """Whether they accept work."""
        return self.writer.usable

    async def connect(self) -> None:
        """Open the connections, so that problems show at once.

        Without a file there is nothing to connect to: only `migrate` creates it.
        """
        if look_at_file(self._file):
            await self.writer.read(_nothing)
            await self.reader.read(_nothing)

    def create_file(self) -> None:
        """Create the file if it does not exist."""
        create_file(self._file)

    async def stop(self) -> None:
        """Stop all threads."""
        # The writer last: the last connection to close checkpoints the write-ahead log.
        try:
            await self.keeper.close()
            await self.reader.stop(_READER_STOP_SECONDS)
        finally:
            await self.writer.stop()


def _nothing(connection: sqlite3.Connection) -> None:
    """Do nothing: being called means being connected."""
