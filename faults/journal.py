"""What happened, written by everyone who took part: one file, one line for each event, one `write` for each line.

The file is opened with O_APPEND, so the order of its lines agrees with cause and effect: what was written before a call
was sent stands above everything that this call brought about. `at` is CLOCK_MONOTONIC, which all processes of a machine
share and no fault moves. The store's own times are those that it returned.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

What: TypeAlias = Literal[
    # publishers
    "intended", "acknowledged", "uncertain", "refused", "rolled_back",
    # workers: their calls to the store
    "claiming", "claimed", "claim_ended", "recalled", "extended", "settling", "settled", "acking", "acked",
    "looked",
    # handlers
    "started", "ended",
    # processes
    "booted", "stopping", "stopped", "exited",
    # operators
    "paused", "resuming",
    # faults, and the end
    "fault", "returned", "calm", "left", "over",
]  # fmt: skip

CANCELLED: Final = "cancelled"
"""How a handler ended, or a publish, that was cancelled while it was under way."""
BY_A_MESSAGE: Final = "killed by a message"
"""The fault of a process that died by what it handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One event. Which fields it has depends on `what` it is."""

    what: What
    process: str
    at: float
    key: str | None = None
    """What its publisher calls the message: it is in the body, so it is known before there is an id."""
    id: int | None = None
    token: str | None = None
    queue: str | None = None
    sent: float | None = None
    """When the call was sent whose answer this is."""
    # intended
    delay: float = 0.0
    timer: bool = False
    """Whether the key is also its timer id, taken until after the run: published again, it is not stored twice."""
    ordering_key: str | None = None
    transactional: bool = False
    """Whether its handler writes an effect in the transaction that ends the message."""
    poison: bool = False
    """Whether it kills the process that handles it."""
    # claimed
    store_at: float | None = None
    due_at: float | None = None
    attempts: int = 0
    deliveries: int = 0
    lease: float = 0.0
    # extended, settled
    outcome: str | None = None
    reason: str | None = None
    result: str | None = None
    # ended, uncertain: whether it was cancelled; over: what is wrong with the files of the store
    how: str | None = None
    # booted
    grace: float = 0.0
    max_deliveries: int = 0
    max_attempts: int = 0
    timeout: float = 0.0
    """After how long a handler is cancelled; 0 is never."""
    ahead: float | None = None
    """How far its wall clock is ahead of CLOCK_MONOTONIC."""
    # exited
    code: int | None = None
    # fault
    kind: str | None = None
    target: str | None = None
    """The process it hit; without one, all of them."""
    until: float | None = None
    """When it was over; without an end, it lasted: the process is dead."""
    skew: float | None = None
    """If it moved the store's clock: how far ahead that is from now on."""
    # over; before it, a line `left` for each message that is still there
    waiting: tuple[int, ...] = ()
    letters: tuple[int, ...] = ()
    """The dead letters, by the ids of their messages."""
    effects: tuple[str, ...] = ()
    """The key of each effect in the database."""
    server: str | None = None
    """What the server says that it is."""
    durability: str | None = None
    """What its acknowledgements wait for, as it says itself."""

    def __str__(self) -> str:
        facts = {name: value for name, value in _facts(self).items() if name not in ("what", "process", "at")}
        said = " ".join(f"{name}={value}" for name, value in facts.items())
        return f"{self.at:14.6f} {self.process:<14} {self.what:<12} {said}"


_DEFAULTS: Final = {field.name: field.default for field in fields(Line)}
_TUPLES: Final = ("waiting", "letters", "effects")


def _facts(line: Line) -> dict[str, Any]:
    return {name: value for name, value in asdict(line).items() if value != _DEFAULTS[name]}


_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
BULK: Final = "bulk"
"""How the names of those begin who publish in batches, and so the keys of their messages."""
_HEAD: Final = re.compile(
    rb'^\{"what":"(\w+)","process":"([^"]+)","at":[^,}]+(,"key":"%b)?' % BULK.encode(), re.MULTILINE
)
"""How each line begins: what it is can be counted without reading the rest."""
_BEGIN: Final = b'{"what":"'
_RUNS: Final = (b"started", b"ended")
_CANCELLED: Final = f'"how":"{CANCELLED}"'.encode()


class Journal:
    """Appends the events of one process. Safe in threads: a line is one `write`."""

    def __init__(self, path: Path, process: str) -> None:
        self.process: Final = process
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: What, **facts: Any) -> None:
        """This happened, just now."""
        os.write(self._file, self._text(what, time.monotonic(), facts))

    def write_all(self, what: What, several: Iterable[Mapping[str, Any]]) -> None:
        """The same happened to several messages at once: their lines are one `write` too."""
        now = time.monotonic()
        os.write(self._file, b"".join(self._text(what, now, facts) for facts in several))

    def _text(self, what: What, at: float, facts: Mapping[str, Any]) -> bytes:
        # Not through `Line`, which costs five times as much: there are millions of lines.
        line = {"what": what, "process": self.process, "at": at}
        line |= {name: value for name, value in facts.items() if value != _DEFAULTS[name]}
        return _encode(line).encode() + b"\n"

    def close(self) -> None:
        """Nothing more will be written."""
        os.close(self._file)


def read(path: Path) -> list[Line]:
    """Every line of a journal, in order."""
    lines, _ = read_from(path, 0)
    return lines


def read_from(path: Path, offset: int) -> tuple[list[Line], int]:
    """The lines from this byte of the file on, and where the next ones will begin."""
    data = _whole_lines(path, offset)
    return [_line(text) for text in data.splitlines()], offset + len(data)


def count_from(path: Path, offset: int) -> tuple[Counter[tuple[str, What]], int, int]:
    """How often what happened in each process from this byte on, how often `CANCELLED`, and where to go on.

    Runs of messages that were published in batches do not count: there are many, and none takes any time.
    """
    data = _whole_lines(path, offset)
    counts: Counter[tuple[str, What]] = Counter()
    for (what, process, bulk), count in Counter(_HEAD.findall(data)).items():
        if not bulk or what not in _RUNS:
            counts[process.decode(), cast("What", what.decode())] += count
    return counts, data.count(_CANCELLED), offset + len(data)


def _whole_lines(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        # A line that is just being written may be seen in part.
        data, newline, _ = file.read().rpartition(b"\n")
    return data + newline


def _line(text: bytes) -> Line:
    # A process that is killed while it writes a batch leaves the first part of a line, and the next goes on behind it.
    facts = json.loads(text[max(text.rfind(_BEGIN), 0) :])
    for name in _TUPLES:
        if name in facts:
            facts[name] = tuple(facts[name])
    return Line(**facts)
