"""What runs builds: a service of somebody else's, which can be asked but does not call back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NewType, Protocol, TypeAlias

BuildId = NewType("BuildId", str)
Metadata: TypeAlias = Mapping[str, str]

KEY = "idempotency-key"
"""Metadata of a trigger: asked twice with the same key, a runner starts one build."""


class BuildStatus(StrEnum):
    """How far a build is."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether it stays like this."""
        return self in (BuildStatus.SUCCEEDED, BuildStatus.FAILED, BuildStatus.CANCELLED)


class UnknownBuild(LookupError):
    """The runner knows no build of this id."""


class BuildRunner(Protocol):
    """Starts builds, tells how they stand, stops them. Never blocks for long; what it raises may be worth a retry."""

    async def trigger(self, base: Sequence[str], head: Sequence[str], metadata: Metadata) -> BuildId:
        """Apply the changes of `base`, then those of `head`, and build the result; returns at once."""
        ...

    async def status(self, build_id: BuildId) -> tuple[BuildStatus, Metadata]:
        """How the build stands; raises `UnknownBuild` if there is none."""
        ...

    async def cancel(self, build_id: BuildId) -> None:
        """Ask the build to stop; returns when it was asked. Does nothing to a build that has ended."""
        ...
