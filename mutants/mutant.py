"""One deliberate mistake in one file of the product."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

PRODUCT: Final = Path("src/nightmail")


class Rotten(Exception):
    """The text of a mutant is not in its file exactly once: the product changed, and the mutant did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A mistake, and who has to notice it."""

    name: str
    why: str
    """What a user would see of it."""
    file: str
    """Below `src/nightmail`."""
    text: str
    """What is replaced. It is in the file exactly once."""
    instead: str
    killers: tuple[str, ...]
    """The tests that run, as pytest names them. One of them has to fail."""

    @property
    def part(self) -> str:
        """What it breaks: a store, or a directory of the product."""
        head, *rest = self.file.split("/")
        return rest[0] if head == "stores" and len(rest) > 1 else head if rest else "values"

    @property
    def path(self) -> Path:
        """Its file, from the root of the tree."""
        return PRODUCT / self.file

    @property
    def digest(self) -> str:
        """Changes when the mutant does: a result is about one version of it."""
        parts = (self.file, self.text, self.instead, *self.killers)
        return sha256("\0".join(parts).encode()).hexdigest()[:12]

    def applied(self, source: str) -> str:
        """The source of its file with the mistake in it."""
        times = source.count(self.text)
        if times != 1:
            raise Rotten(f"{self.name}: its text is in {self.path} {times} times, and must be there once")
        return source.replace(self.text, self.instead)
