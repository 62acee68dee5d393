"""From what was sent to a line of the golden file: the names of its statements, and a digest of its text."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from typing import Final

import nightmail
from nightmail.stores.redis.scripts import script
from tests.golden.record import RoundTrip, Sent

STORES: Final = Path(nightmail.__file__).parent / "stores"
SHOWN: Final = 60
"""So many characters are shown of a statement that has no name."""

_SECTION: Final = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_HOLE: Final = "\0"
_TABLE: Final = re.compile(r"""(?:["`]\w+["`]\.)?["`](nightmail_\w+)["`]""")
_VALUES: Final = {
    "mysql": re.compile(r"(?:_utf8mb4 )?\bx'[0-9a-f]*'|\btimestamp'[^']*'|\bnull\b|(?<![\w.])\d+\b"),
    # The number of the server's process, and identities in the name of a channel.
    "postgres": re.compile(
        r"(?<=operator\(pg_catalog\.<>\) )\d+|(?<=_)(?:[0-9a-f]{32}|[0-9a-f]{16})(?![0-9a-z])"
    ),
    # All are parameters.
    "sqlite": re.compile(r"(?!)"),
}


class Naming(ABC):
    """How a store's statements or scripts are called."""

    def shown(self, trips: Sequence[RoundTrip]) -> list[str]:
        """Each round trip as a line; the same again and again as one."""
        lines = (
            f"{trip.connection}: {'; '.join(_counted(self.described(sent) for sent in trip.sent))}"
            for trip in trips
        )
        return _counted(lines)

    @abstractmethod
    def described(self, sent: Sent) -> str:
        """One statement or command: its name, and a digest of its text."""


class StatementNaming(Naming):
    """For statements in `.sql` files.

    Values in the text are left out, and so is the schema. What is written in a `.sql` file may look like a value: so
    the digest is made of the text as sent and as it stands in the file.
    """

    def __init__(self, store: str) -> None:
        self._values = _VALUES[store]
        self._templates = [
            _Template(name, body, self._values)
            for file in sorted((STORES / store).glob("*.sql"))
            for text in _read(file)
            for name, body in _sections(text)
        ]
        self._known: dict[str, str] = {}

    def described(self, sent: Sent) -> str:
        plain = _plain(sent.text, self._values)
        if plain not in self._known:
            self._known[plain] = self._named(plain)
        return f"{sent.how} {self._known[plain]}".strip()

    def _named(self, plain: str) -> str:
        found = [
            (match.start(), -match.end(), template)
            for template in self._templates
            for match in template.found_in(plain)
        ]
        names: list[str] = []
        end = 0
        for start, minus_end, template in sorted(found, key=lambda each: each[:2]):
            if start >= end:
                names.append(template.name)
                end = -minus_end
        parts = sorted({template.text for _, _, template in found})
        digest = _digest("\n".join([plain, *parts]))
        if not names:
            # Short ones say all there is to say.
            return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}… {digest}"
        return f"{' + '.join(_counted(names))} {digest}"


class ScriptNaming(Naming):
    """For scripts in `.lua` files."""

    def described(self, sent: Sent) -> str:
        if not sent.text:
            return sent.how
        name, text = _scripts().get(sent.text, ("an unknown script", sent.text))
        return f"{sent.how} {name} {_digest(text)} {sent.on}".strip()


@dataclass(frozen=True)
class _Template:
    name: str
    text: str
    values: re.Pattern[str]

    def found_in(self, plain: str) -> list[re.Match[str]]:
        fixed = [part for part in self._parts if part]
        if not fixed or not all(part in plain for part in fixed):
            return []
        return list(self._pattern.finditer(plain))

    @cached_property
    def _parts(self) -> list[str]:
        return _plain(_PARAMETER.sub(_HOLE, self.text), self.values).split(_HOLE)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(".*?".join(map(re.escape, self._parts)))


def _read(file: Path) -> list[str]:
    """What is in a file. That of leases also serves the table of the dead letters."""
    text = file.read_text("utf-8")
    if file.name != "under_lease.sql":
        return [text]
    letters = text.replace("nightmail_messages", "nightmail_dead")
    return [text, letters.replace("nightmail_leased", "nightmail_dead_leased")]


def _sections(text: str) -> list[tuple[str, str]]:
    parts = _SECTION.split(text)
    return [(name, _uncommented(body)) for name, body in zip(parts[1::2], parts[2::2], strict=True)]


def _uncommented(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")


def _plain(text: str, values: re.Pattern[str]) -> str:
    """In one line, with tables as in the files, and without values."""
    return values.sub("?", _TABLE.sub(r"\1", " ".join(text.split())))


@cache
def _scripts() -> dict[str, tuple[str, str]]:
    """The scripts by digest and by text, as one or the other is sent."""
    found: dict[str, tuple[str, str]] = {}
    for file in sorted((STORES / "redis").glob("*.lua")):
        for flags in (True, False):
            each = script(file.stem, flags=flags)
            found[each.digest] = found[each.text] = (each.name, each.text)
    return found


def _counted(all_of_them: Iterable[str]) -> list[str]:
    """Those that come several times in a row only once, and how often."""
    runs = ((each, sum(1 for _ in same)) for each, same in groupby(all_of_them))
    return [each if times == 1 else f"{each} (× {times})" for each, times in runs]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
