"""Whether a server has enough connections for the workers, and for what else uses it: told as findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from nightmail.findings import Code, Finding, Severity
from nightmail.wording import count

FULL_SHARE: Final = 0.8
"""From this share on, a server is running out of connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The connections of one server."""

    most: int
    """How many there can be. 0: the server does not say, and nothing is found."""
    used: int
    others: int | None = None
    """How many of these are not Nightmail's, where the server tells them apart."""
    code: Code
    remedy: str
    where: str = "this server"
    subject: tuple[str, ...] = ()

    def findings(self, *, processes: int, each: int) -> Iterator[Finding]:
        """What is wrong where so many processes are at work, with up to so many connections each."""
        needed = processes * each
        if self.most and needed + (self.others or 0) > self.most:
            yield self._finding(
                what=f"the workers may need more connections than {self.where} has",
                evidence=f"{count(processes)} processes with up to {each} each need up to {count(needed)}{self._rest}",
                consequence="some workers cannot connect when all are busy, and try again until others let go",
                remedy=f"{self.remedy}; or run fewer processes with more `max_workers` each",
            )
        elif self.most and self.used >= FULL_SHARE * self.most:
            yield self._finding(
                what=f"{self.where} is running out of connections",
                evidence=f"{count(self.used)} of {count(self.most)} are in use",
                consequence=f"a new process needs up to {each}, and cannot start without them",
                remedy=self.remedy,
            )

    @property
    def _rest(self) -> str:
        if self.others is None:
            return f"; there are {count(self.most)}, of which {count(self.used)} are in use"
        return f", other software has {count(self.others)}; there are {count(self.most)}"

    def _finding(self, *, what: str, evidence: str, consequence: str, remedy: str) -> Finding:
        return Finding(
            code=self.code,
            severity=Severity.WARNING,
            subject=self.subject,
            what=what,
            evidence=evidence,
            consequence=consequence,
            remedy=remedy,
        )
