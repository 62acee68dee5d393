"""What every process that uses the same tables must agree on. Each store keeps it in a row, or a hash, of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from nightmail.errors import NightmailError, SchemaDrift, SchemaOutdated
from nightmail.findings import Code, Finding, Severity

LOOK_INTERVAL: Final = timedelta(seconds=5)
"""The longest an idle worker goes without polling. Publishers rely on it when they skip a wake-up."""
WITHOUT_WAKEUPS: Final = timedelta(seconds=1)
"""The same while no wake-ups arrive."""
NOTICE_HORIZON: Final = timedelta(seconds=60)
"""A write wakes workers only if the message is due within this time: later ones are found by polling.

The scripts of Redis have it too: `HORIZON`.
"""
OTHER_INTERVALS: Final = "look interval and notice horizon are not those of this version"


@dataclass(frozen=True, slots=True)
class TablesVersion:
    """Which version the tables are of, and for which code they serve."""

    version: int
    serves: int
    """The oldest version of the code that may use them: while a fleet is upgraded, the old code goes on."""

    def problem(self, needed: int) -> NightmailError | None:
        """What is wrong with these tables for code of this version, if anything is."""
        if self.version < needed:
            return SchemaOutdated(self.version, needed)
        if self.serves > needed:
            newer = (
                f"they are at version {self.version}, which serves code of version {self.serves} or later, "
                f"and this is version {needed}: update nightmail"
            )
            return SchemaDrift([newer])
        return None

    def findings(self, own: int) -> Iterator[Finding]:
        """What a doctor of this version has to say about tables that it can use."""
        if self.serves <= own < self.version:
            yield Finding(
                code=Code.SCHEMA_NEWER,
                severity=Severity.NOTICE,
                what="the tables are newer than this version of Nightmail",
                evidence=(
                    f"they are at version {self.version} and serve code of version {self.serves} or later; this is "
                    f"version {own}"
                ),
                consequence=(
                    "normal while an upgrade is under way. If it stays, old code was left behind: it does not notice "
                    "what was changed in such tables, and after one more migration it may no longer work"
                ),
                remedy="update nightmail here, and wherever `nightmail workers` shows an older version",
            )
