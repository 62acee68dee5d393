"""The names of our tables: configurable, checked, quoted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

DEFAULT_PREFIX: Final = "nightmail"
TABLES: Final = frozenset(
    {"messages", "dead", "delivered", "dedup", "controls", "workers", "consumers", "meta"}
)
# 40 characters leave room for the longest name we derive, in every database (63 bytes on Postgres).
_PART: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True)
class TableNames:
    """Where our tables are: a prefix, and a schema if the database has schemas."""

    prefix: str = DEFAULT_PREFIX
    schema: str | None = None

    def __post_init__(self) -> None:
        for part in (self.prefix, self.schema):
            if part is not None and not _PART.fullmatch(part):
                raise ValueError(
                    f"{part!r} cannot name our tables: use a to z, 0 to 9 and _, at most 40, not starting with a digit"
                )

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Parse `prefix` or `schema.prefix`; `None` is the default."""
        if text is None:
            return cls()
        schema, dot, prefix = text.rpartition(".")
        return cls(prefix, schema if dot else None)

    def quoted(self, name: str) -> str:
        """Our table `name` (`messages`, `dead`, ...), qualified and quoted; or an index or constraint, quoted.

        Indexes and constraints live where their table lives, and databases refuse a qualified name for them.
        """
        own = f'"{self.prefix}_{name}"'
        return f'"{self.schema}".{own}' if self.schema and name in TABLES else own
