"""What verbs ask for, and the answers.

A statement with its values is a request by itself, answered by an `Answer`. On connections of our own a tuple of
statements is one too: they go in one round trip, answered by a list. The others are below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from nightmail.stores.mysql.dialect import Dialect


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one statement."""

    rows: Sequence[Sequence[Any]]
    last_id: int
    """The first id that an INSERT assigned; 0 if none."""


class Question(Enum):
    """What a verb asks about its session."""

    SERVER = auto()
    CHECK_TABLES = auto()
    IDENTITY = auto()


SERVER: Final = Question.SERVER
"""Which server this is: a `Server`."""
CHECK_TABLES: Final = Question.CHECK_TABLES
"""Refuse with `OtherDatabase` unless the session sees our tables; the answer is what it sees of them: `Sees`."""
IDENTITY: Final = Question.IDENTITY
"""What identifies our tables, for a statement that checks it by itself. Asked only in callers' transactions."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server of a session."""

    dialect: Dialect
    largest_packet: int
    """How many bytes a statement may have."""


class Sees(Enum):
    """What a session sees of what others have committed."""

    ALL = auto()
    REPORTS_ALL = auto()
    """It is at read committed. A single transaction may differ, and no variable shows it."""
    SNAPSHOT = auto()
    """What was committed when its transaction began."""


@dataclass(frozen=True, slots=True)
class AllOrNone:
    """Statements that are sent one by one because of their size, and of which all or none take effect."""

    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this long. Only on connections of our own."""

    seconds: float
