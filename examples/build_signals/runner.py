"""What runs builds: an external service that can be polled but does not call back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NewType, Protocol, TypeAlias

BuildId = NewType("BuildId", str)
Metadata: TypeAlias = Mapping[str, str]

KEY = "idempotency-key"
"""Metadata of a trigger: asked twice with the same key, a runner starts one build."""


class BuildStatus(StrEnum):
    """The status of a build."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether this status is final."""
        return self in (BuildStatus.SUCCEEDED, BuildStatus.FAILED, BuildStatus.CANCELLED)


class UnknownBuild(LookupError):
    """The runner knows no build of this id."""


class BuildRunner(Protocol):
    """Starts builds, reports their status, stops them. Never blocks for long; what it raises may be worth a retry."""

    async def trigger(self, base: Sequence[str], head: Sequence[str], metadata: Metadata) -> BuildId:
        """Apply the changes of `base`, then those of `head`, and build the result; returns at once."""
        ...

    async def status(self, build_id: BuildId) -> tuple[BuildStatus, Metadata]:
        """The status of the build; raises `UnknownBuild` if there is none."""
        ...

    async def cancel(self, build_id: BuildId) -> None:
        """Ask the build to stop; does not wait until it has. Does nothing to a build that has ended."""
        ...
