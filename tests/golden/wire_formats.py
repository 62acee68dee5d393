"""What clients of the servers write on the wire, as far as it is statements and commands."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Final

from tests.golden.record import Sent

_COMMENT: Final = re.compile(r"--[^\n]*")


class WireFormat(ABC):
    """Reads what one connection sends, in whatever pieces it comes."""

    def __init__(self) -> None:
        self._unread = b""

    def read(self, piece: bytes) -> list[Sent]:
        """What was asked for with this piece."""
        self._unread += piece
        found: list[Sent] = []
        while (end := self._end()) is not None:
            message, self._unread = self._unread[:end], self._unread[end:]
            found += self._understood(message)
        return found

    @abstractmethod
    def _end(self) -> int | None:
        """Where the first message of what is not read yet ends, if all of it is there."""

    @abstractmethod
    def _understood(self, message: bytes) -> list[Sent]: ...


class PostgresWire(WireFormat):
    """A statement is run as text, or prepared under a name, perhaps the empty one, and run by it."""

    HEAD = 5
    STARTUP = 4
    ENCRYPTION = 80877103

    def __init__(self) -> None:
        super().__init__()
        self._started = False
        self._prepared: dict[bytes, str] = {}

    def _end(self) -> int | None:
        # The first messages have no letter before their length.
        at = 1 if self._started else 0
        if len(self._unread) < at + 4:
            return None
        end = at + int.from_bytes(self._unread[at : at + 4], "big")
        return end if len(self._unread) >= end else None

    def _understood(self, message: bytes) -> list[Sent]:
        if not self._started:
            self._started = int.from_bytes(message[4:8], "big") != self.ENCRYPTION
            return []
        kind, body = message[:1], message[self.HEAD :]
        match kind:
            case b"Q":
                return [Sent(body.rstrip(b"\0").decode())]
            case b"P":
                name, text, _ = body.split(b"\0", 2)
                self._prepared[name] = text.decode()
                # One without a name is run at once, and seen then.
                return [Sent(text.decode(), "prepare")] if name else []
            case b"B":
                _, name, _ = body.split(b"\0", 2)
                return [Sent(self._prepared[name])]
            case _:
                return []


class MySQLWire(WireFormat):
    """A packet holds one command. Those of the greeting do not begin with the number 0."""

    HEAD = 4
    QUIT, QUERY = 0x01, 0x03
    NAMES: Final = {0x02: "COM_INIT_DB", 0x0E: "COM_PING", 0x16: "COM_STMT_PREPARE", 0x17: "COM_STMT_EXECUTE"}

    def _end(self) -> int | None:
        if len(self._unread) < self.HEAD:
            return None
        end = self.HEAD + int.from_bytes(self._unread[:3], "little")
        return end if len(self._unread) >= end else None

    def _understood(self, message: bytes) -> list[Sent]:
        number, command = message[3], message[4] if len(message) > self.HEAD else None
        if number != 0 or command is None or command == self.QUIT:
            return []
        if command != self.QUERY:
            return [Sent("", self.NAMES.get(command, f"command {command}"))]
        # Values are hexadecimal or numbers: there are neither comments nor semicolons in them.
        return [Sent(statement) for statement in _COMMENT.sub("", message[5:].decode()).split("; ")]


class RedisWire(WireFormat):
    """A command is a list of byte strings. What is sent is a script, or its digest, or a command without a text."""

    GREETING = frozenset({"HELLO", "AUTH", "CLIENT", "SELECT"})
    """How a driver begins: that is its own affair, and it does not wait for each answer."""

    def _end(self) -> int | None:
        line_end = self._unread.find(b"\r\n")
        if line_end < 0:
            return None
        at = line_end + 2
        for _ in range(int(self._unread[1:line_end])):
            line_end = self._unread.find(b"\r\n", at)
            if line_end < 0:
                return None
            at = line_end + 2 + int(self._unread[at + 1 : line_end]) + 2
        return at if len(self._unread) >= at else None

    def _understood(self, message: bytes) -> list[Sent]:
        words: list[bytes] = []
        at = message.index(b"\r\n") + 2
        while at < len(message):
            line_end = message.index(b"\r\n", at)
            length = int(message[at + 1 : line_end])
            words.append(message[line_end + 2 : line_end + 2 + length])
            at = line_end + 2 + length + 2
        command = words[0].decode().upper()
        if command in self.GREETING:
            return []
        if command in ("EVAL", "EVALSHA"):
            keys = int(words[2])
            return [Sent(words[1].decode(), command, "" if keys == 1 else f"on {keys} keys")]
        # The rest are keys and values.
        return [Sent("", command)]
