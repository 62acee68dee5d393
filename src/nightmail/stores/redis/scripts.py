"""The scripts: each a file, after the prelude that all share, and what those on the same subject share."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

PACKAGE: Final = "nightmail.stores.redis"
COMMON: Final = "common.lua"
_COMMANDS: Final = re.compile(r"(?:redis\.p?call|in_parts)\('([A-Z]+)'")
_SHARED: Final = {
    "fingerprint.lua": {"dead_errors", "settle"},
    "leaving.lua": {"report", "sign_off"},
    "letters.lua": {
        "claim_dead",
        "cross_end",
        "cross_hold",
        "dead",
        "dead_errors",
        "extend_dead",
        "facts",
        "purge",
        "purge_find",
        "recall_dead",
        "redrive",
        "settle_dead",
        "sweep",
    },
    "pauses.lua": {"claim", "facts", "list_pauses", "look_ahead", "pause", "probe_again", "resume", "sweep"},
    "recalling.lua": {"recall", "recall_dead"},
    "stored.lua": {"facts", "find"},
    "waiting.lua": {"facts", "peek"},
}
"""What some of the scripts share, by the file it is in."""


# Scripts that store messages are refused when the server's memory is full. All others still run, or a worker could
# neither keep its leases nor make room, and no queue could be paused.
_STORING: Final = frozenset({"publish", "cross_store"})
_FLAGS: Final = "#!lua flags=allow-oom\n"
"""Supported since 7.0. An older server is sent the script without them."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the digest by which a server that has loaded it knows it."""

    name: str
    text: str
    digest: str
    flags: str = ""

    @property
    def commands(self) -> frozenset[str]:
        """The commands it may use, except wake-ups."""
        return frozenset(_COMMANDS.findall(self.text))


@cache
def script(name: str, *, flags: bool = True) -> Script:
    """The script in the file of this name."""
    parts = [*(part for part, users in _SHARED.items() if name in users), f"{name}.lua"]
    return _made(name, "".join(map(_read, parts)), _FLAGS if flags and name not in _STORING else "")


def script_of(name: str, text: str) -> Script:
    """A script that is in no file of the store: a step of a migration."""
    return _made(name, text, "")


def _made(name: str, text: str, flags: str) -> Script:
    text = flags + _without_comments(_read(COMMON) + text)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), flags)


def _without_comments(text: str) -> str:
    """The same script in two thirds of the bytes: a publish in a caller's MULTI sends it whole, to be digested."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))


@cache
def _read(file: str) -> str:
    return resources.files(PACKAGE).joinpath(file).read_text("utf-8")
