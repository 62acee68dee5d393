"""The scripts: each a file of its own, behind the beginning that all share, or all that are about dead letters."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

PACKAGE: Final = "nightmail.stores.redis"
COMMON: Final = "common.lua"
LETTERS: Final = "letters.lua"
_ABOUT_LETTERS: Final = frozenset(
    {
        "claim_dead",
        "cross_end",
        "cross_hold",
        "dead",
        "extend_dead",
        "purge",
        "purge_find",
        "recall_dead",
        "redrive",
        "settle_dead",
        "sweep",
    }
)


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the digest by which a server that has seen it knows it."""

    name: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class Call:
    """A script with its keys, all in one slot, and its arguments."""

    script: Script
    keys: tuple[str, ...]
    arguments: tuple[bytes | str | int, ...]

    @property
    def by_digest(self) -> tuple[bytes | str | int, ...]:
        """As a command, for a server that knows the script."""
        return ("EVALSHA", self.script.digest, len(self.keys), *self.keys, *self.arguments)

    @property
    def in_full(self) -> tuple[bytes | str | int, ...]:
        """As a command, for a server that may not know the script; it does from then on."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.arguments)


@cache
def script(name: str) -> Script:
    """The script in the file of this name."""
    files = resources.files(PACKAGE)
    parts = [COMMON, *([LETTERS] if name in _ABOUT_LETTERS else []), f"{name}.lua"]
    text = "".join(files.joinpath(part).read_text("utf-8") for part in parts)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
