"""A runner that runs a command on this machine, as a subprocess of this process."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from uuid import uuid4

from examples.build_signals.runner import KEY, BuildId, BuildStatus, Metadata, UnknownBuild


class LocalRunner:
    """Builds live as long as this process: after a restart they are unknown, and it says so."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self._builds: dict[BuildId, Process] = {}
        self._cancelled: set[BuildId] = set()
        self._by_key: dict[str, BuildId] = {}

    async def trigger(self, base: Sequence[str], head: Sequence[str], metadata: Metadata) -> BuildId:
        key = metadata.get(KEY)
        if key is not None and key in self._by_key:
            return self._by_key[key]
        build_id = BuildId(f"local-{uuid4()}")
        # The changes are arguments, never shell text: their names are untrusted input.
        self._builds[build_id] = await asyncio.create_subprocess_exec(
            *self._command, *base, *head, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
        if key is not None:
            self._by_key[key] = build_id
        return build_id

    async def status(self, build_id: BuildId) -> tuple[BuildStatus, Metadata]:
        code = self._process(build_id).returncode
        if code is None:
            return BuildStatus.RUNNING, {}
        if build_id in self._cancelled:
            return BuildStatus.CANCELLED, {"exit": str(code)}
        return BuildStatus.SUCCEEDED if code == 0 else BuildStatus.FAILED, {"exit": str(code)}

    async def cancel(self, build_id: BuildId) -> None:
        process = self._process(build_id)
        if process.returncode is None:
            self._cancelled.add(build_id)
            process.terminate()

    async def close(self) -> None:
        """Stop what still runs."""
        for build_id, process in self._builds.items():
            await self.cancel(build_id)
            await process.wait()

    def _process(self, build_id: BuildId) -> Process:
        try:
            return self._builds[build_id]
        except KeyError:
            raise UnknownBuild(build_id) from None
