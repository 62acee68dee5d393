"""What can be wrong with a database file and its disk: told as findings.

Journal and sync modes are not among it: the store sets both on each of its connections, and refuses a file on which it
cannot.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from typing import Final

from nightmail.findings import Code, Finding, Severity
from nightmail.wording import count

SAFE_VERSION: Final = (3, 51, 3)
"""Before it, two connections that checkpoint at the same moment can corrupt the file."""
LARGEST_LOG: Final = 256 * 1024 * 1024
"""Four times what the store lets the log grow to: a reader must be in the way."""
LEAST_FREE: Final = 512 * 1024 * 1024
MOUNTS: Final = "/proc/mounts"
_OVER_THE_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs"}
)
_MEGABYTE: Final = 1_000_000


def examine(file: str) -> list[Finding]:
    """What this file and its disk show."""
    path = os.path.realpath(file)
    return [*_version(), *_disk_in_the_network(path), *_large_log(path), *_full_disk(path)]


def _version() -> Iterator[Finding]:
    if sqlite3.sqlite_version_info < SAFE_VERSION:
        yield Finding(
            code=Code.SQLITE_VERSION,
            severity=Severity.NOTICE,
            what=f"SQLite {sqlite3.sqlite_version} has a rare bug that can corrupt a file",
            evidence=f"it is older than {'.'.join(map(str, SAFE_VERSION))}",
            consequence=(
                "one connection per process checkpoints, so one process is safe; several processes, or other software "
                "with the same file, could meet it"
            ),
            remedy="use a Python with a newer SQLite; until then, keep the file to one process",
        )


def _disk_in_the_network(path: str) -> Iterator[Finding]:
    kind = _file_system(path)
    if kind in _OVER_THE_NETWORK:
        yield Finding(
            code=Code.SQLITE_NETWORK_DISK,
            severity=Severity.FATAL,
            what="the database file lies on a disk in the network",
            evidence=f"its file system is {kind}",
            consequence="locks do not hold between machines there: two of them can corrupt the file",
            remedy="move the file to a disk of this machine; for several machines, use Postgres, MySQL or Redis",
        )


def _file_system(path: str) -> str | None:
    """The kind of file system that has this file, where the system tells."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="replace") as mounts:
            found = [line.split()[1:3] for line in mounts if len(line.split()) > 2]
    except OSError:
        return None
    # Spaces in a place are written as \040. The longest place that leads to the file is its own.
    places = [(place.replace("\\040", " "), kind) for place, kind in found]
    leading = [
        (place, kind) for place, kind in places if path == place or path.startswith(place.rstrip("/") + "/")
    ]
    return max(leading, key=lambda each: len(each[0]), default=(None, None))[1]


def _large_log(path: str) -> Iterator[Finding]:
    try:
        size = os.stat(f"{path}-wal").st_size
    except OSError:
        return
    if size > LARGEST_LOG:
        yield Finding(
            code=Code.SQLITE_LOG_LARGE,
            severity=Severity.WARNING,
            what="the write-ahead log does not shrink",
            evidence=f"{path}-wal has {count(size // _MEGABYTE)} MB",
            consequence="every read gets slower, and the disk fills up",
            remedy=(
                "a reader keeps its transaction open: end it (`lsof` on the file shows the processes), then "
                "`PRAGMA wal_checkpoint(TRUNCATE)`"
            ),
        )


def _full_disk(path: str) -> Iterator[Finding]:
    try:
        free = shutil.disk_usage(os.path.dirname(path)).free
    except OSError:
        return
    if free < LEAST_FREE:
        yield Finding(
            code=Code.SQLITE_DISK_FULL,
            severity=Severity.WARNING,
            what="the disk of the database file is nearly full",
            evidence=f"{count(free // _MEGABYTE)} MB are free",
            consequence="when it is full, nothing can be published, nor noted as delivered",
            remedy="make room; `nightmail dead purge` and then `VACUUM` make the file smaller",
        )
