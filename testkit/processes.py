"""Processes as /proc shows them.

Only /proc/<pid>/stat is read: it is open to everyone. `cwd`, `exe` and `environ` would tell more,
but root in a container may not read those of a server that runs as another user.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self


@dataclass(frozen=True, slots=True)
class Process:
    """One process and no other: a pid is reused some day, a pid with its start time is not."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process that has this pid now; `ProcessLookupError` when there is none."""
        return cls(pid, _started(_stat(pid)))

    @property
    def state(self) -> str | None:
        """Its state letter as in proc(5), or `None` when it is gone."""
        try:
            stat = _stat(self.pid)
        except ProcessLookupError:
            return None
        return stat.state if _started(stat) == self.started else None

    @property
    def alive(self) -> bool:
        """Whether it can still do anything. A zombie cannot."""
        return self.state not in (None, "Z", "X")

    @property
    def stopped(self) -> bool:
        """Whether SIGSTOP has taken effect."""
        return self.state == "T"

    def signal(self, signum: int) -> None:
        """Send a signal, unless the process is gone."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)


def descendants(pid: int) -> list[Process]:
    """The living children of this process, their children and so on, parents before children."""
    children: dict[int, list[Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(ProcessLookupError):
                stat = _stat(int(entry))
                if stat.state not in "ZX":
                    child = Process(int(entry), _started(stat))
                    children.setdefault(stat.parent, []).append(child)
    found: list[Process] = []
    parents = [pid]
    for parent in parents:
        found += children.get(parent, [])
        parents += (child.pid for child in children.get(parent, []))
    return found


class _Stat(NamedTuple):
    state: str
    parent: int
    ticks: int


def _stat(pid: int) -> _Stat:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"no process {pid}") from None
    # The name in parentheses may itself hold spaces and parentheses: count from the last one.
    fields = text.rpartition(")")[2].split()
    return _Stat(state=fields[0], parent=int(fields[1]), ticks=int(fields[19]))


def _started(stat: _Stat) -> str:
    # Ticks count from boot, so on their own they could match a process of the next boot.
    return f"{_boot_id()}/{stat.ticks}"


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
