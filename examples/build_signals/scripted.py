"""A runner that follows a script: so many polls accepted, so many running, then an outcome, and errors on demand.

It counts polls in a directory, because the polling process may be killed and another one continues the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from examples.build_signals.runner import KEY, BuildId, BuildStatus, Metadata, UnknownBuild


@dataclass(frozen=True)
class Script:
    """What happens to every build."""

    accepted: int = 2
    running: int = 3
    outcome: BuildStatus = BuildStatus.SUCCEEDED
    failing_polls: frozenset[int] = frozenset()
    """Which polls, counted from 1, raise instead of answering."""


class ScriptedRunner:
    """Plays the script for each build that is triggered."""

    def __init__(self, directory: Path, script: Script) -> None:
        self._directory = directory
        self._script = script

    async def trigger(self, base: Sequence[str], head: Sequence[str], metadata: Metadata) -> BuildId:
        build_id = BuildId(f"scripted-{metadata.get(KEY) or uuid4()}")
        self._polls_file(build_id).touch()
        return build_id

    async def status(self, build_id: BuildId) -> tuple[BuildStatus, Metadata]:
        poll = self.polls(build_id) + 1
        with self._polls_file(build_id).open("ab") as file:
            file.write(b".")
        if poll in self._script.failing_polls:
            raise ConnectionError(f"poll {poll} is scripted to fail")
        if self._cancelled_file(build_id).exists():
            return BuildStatus.CANCELLED, {}
        return self._at(poll), {"poll": str(poll)}

    async def cancel(self, build_id: BuildId) -> None:
        self.polls(build_id)
        self._cancelled_file(build_id).touch()

    def polls(self, build_id: BuildId) -> int:
        """How often the status of this build was asked for."""
        try:
            return self._polls_file(build_id).stat().st_size
        except FileNotFoundError:
            raise UnknownBuild(build_id) from None

    def _at(self, poll: int) -> BuildStatus:
        if poll <= self._script.accepted:
            return BuildStatus.ACCEPTED
        if poll <= self._script.accepted + self._script.running:
            return BuildStatus.RUNNING
        return self._script.outcome

    def _polls_file(self, build_id: BuildId) -> Path:
        return self._directory / f"{build_id}.polls"

    def _cancelled_file(self, build_id: BuildId) -> Path:
        return self._directory / f"{build_id}.cancelled"
