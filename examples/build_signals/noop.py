"""A runner that builds nothing: every build succeeds at once."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from examples.build_signals.runner import BuildId, BuildStatus, Metadata


class NoopRunner:
    """For code that requires a runner where none is wanted."""

    async def trigger(self, base: Sequence[str], head: Sequence[str], metadata: Metadata) -> BuildId:
        # Not a counter: two processes would both start at 1.
        return BuildId(f"noop-{uuid4()}")

    async def status(self, build_id: BuildId) -> tuple[BuildStatus, Metadata]:
        return BuildStatus.SUCCEEDED, {}

    async def cancel(self, build_id: BuildId) -> None:
        return
