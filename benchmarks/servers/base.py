"""What a scenario needs from a server."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from testkit.processes import Process


class Server(ABC):
    """One server, the same for every system that is measured on it."""

    name: ClassVar[str]

    @abstractmethod
    def start(self) -> None:
        """Start it; what it cannot do raises."""

    @abstractmethod
    def close(self) -> None:
        """End it, and remove everything."""

    @abstractmethod
    async def describe(self) -> dict[str, str]:
        """Its version, and the settings that cost or save time."""

    @contextmanager
    @abstractmethod
    def database(self) -> Iterator[str]:
        """The URL of an empty database, for as long as the block lasts."""

    async def tidy(self, url: str) -> None:
        """Do now what the server would do at some point, the same after every backlog; nothing, on most."""
        return

    async def requests(self, url: str) -> int | None:
        """How many transactions (on Redis: requests) it has carried out; `None` where there is no server to ask."""
        return None

    def processor_seconds(self) -> float | None:
        """How much processor time it has used, for whatever it did; `None` where there is no server."""
        return None

    async def connections(self, url: str) -> int | None:
        """How many connections this database has; `None` where there is no server to ask."""
        return None

    @asynccontextmanager
    async def held_snapshot(self, url: str) -> AsyncIterator[None]:
        """An old transaction, as a dump or a forgotten session holds it."""
        raise NotImplementedError
        yield

    async def multiply(self, url: str, table: str, times: int) -> None:
        """Copy every row of a table until there are so many times as many.

        In an error, @ becomes the number of the copy: errors have numbers in them, and hardly two are the same.
        """
        raise NotImplementedError

    async def dead_rows(self, url: str, table: str) -> int:
        """How many rows are dead and not yet removed."""
        raise NotImplementedError


def used_by(processes: Sequence[Process]) -> float:
    """How much processor time these have used, and those that they have outlived. In hundredths of a second."""
    ticks = 0
    for process in processes:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def copied(columns: Sequence[str], number: int | str) -> str:
    """What to select for copies of rows."""
    return ", ".join(f"replace({each}, '@', {number})" if each == "error" else each for each in columns)
