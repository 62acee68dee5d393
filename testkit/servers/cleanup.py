"""The directories of servers, and the cleanup of those whose run was killed.

    <temporary directory or /dev/shm>/nightmail-testkit-<server>-<random>/
        owner.json        the run it belongs to; a directory without it is not ours
        processes.json    the processes that use it
        ...               the server's own files

A directory may go once its owner is dead. The supervisor has then ended the server, as a rule; should
it have been killed too, the sweep ends what is left. Identities carry start times, so a process that
merely got an old pid is never touched.
"""

import json
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from testkit.processes import Process, descendants
from testkit.waiting import wait_until

_PREFIX = "nightmail-testkit-"
_OWNER = "owner.json"
_PROCESSES = "processes.json"
MEMORY = Path("/dev/shm")  # noqa: S108 - made by mkdtemp like any other
_ROOM_BYTES = 1 << 30


def create(server: str, *, in_memory: bool, root: Path | None = None) -> Path:
    """A new directory that belongs to this process, after sweeping those of dead runs.

    In memory, creating a database takes a fifth of the time: most of it is spent on files.
    """
    for place in _temporary(), MEMORY:
        sweep(place)
    if root is None:
        root = MEMORY if in_memory and has_room(MEMORY, _ROOM_BYTES) else _temporary()
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{server}-", dir=root))
    directory.chmod(0o711)  # The server's own user must get through to its files.
    _write(directory / _OWNER, [Process.of(os.getpid())])
    return directory


def record(directory: Path, processes: Iterable[Process]) -> None:
    """Note which processes use this directory."""
    _write(directory / _PROCESSES, processes)


def sweep(root: Path) -> None:
    """Remove what dead runs left here, ending their processes first."""
    for directory in root.glob(f"{_PREFIX}*"):
        if _is_abandoned(directory):
            _end(_read(directory / _PROCESSES))
            remove(directory)


def remove(directory: Path) -> None:
    """Remove a directory. The owner's mark goes last: a removal cut short is finished by a sweep."""
    with suppress(FileNotFoundError):  # Another sweep was quicker.
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != _OWNER:
                entry.unlink(missing_ok=True)
        if [entry.name for entry in directory.iterdir()] == [_OWNER]:
            (directory / _OWNER).unlink()
            directory.rmdir()


def _temporary() -> Path:
    return Path(tempfile.gettempdir())


def has_room(root: Path, size: int) -> bool:
    """Whether so many bytes fit in there."""
    # A container's share of memory is often 64 MB, enough for one server and no data.
    try:
        found = os.statvfs(root)
    except FileNotFoundError:
        return False
    return found.f_bavail * found.f_frsize >= size


def _is_abandoned(directory: Path) -> bool:
    with suppress(FileNotFoundError):
        found = directory.lstat()
        # In a world-writable place anyone can make a directory that asks us to kill a process.
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            owner = _read(directory / _OWNER)
            return bool(owner) and not owner[0].alive
    return False


def _end(processes: list[Process]) -> None:
    doomed = [process for process in processes if process.alive]
    for process in list(doomed):
        doomed += descendants(process.pid)
    for process in doomed:
        process.signal(signal.SIGKILL)
    wait_until(
        lambda: not any(process.alive for process in doomed),
        within=10.0,
        what=f"the processes of a dead run to end: {doomed}",
    )


def _write(path: Path, processes: Iterable[Process]) -> None:
    path.write_text(json.dumps([asdict(process) for process in processes]))


def _read(path: Path) -> list[Process]:
    """The processes noted in this file; none when it is missing or was never finished."""
    try:
        return [Process(**entry) for entry in json.loads(path.read_text())]
    except (FileNotFoundError, json.JSONDecodeError):
        return []
