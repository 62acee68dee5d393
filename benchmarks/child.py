"""A system in a process of its own, asked line by line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from benchmarks.environments import ROOT, python_for
from benchmarks.systems import System

_ANSWER_SECONDS: Final = 300.0
_END_SECONDS: Final = 20.0
_LOG_TAIL: Final = 3000
_SCHEDULED: Final = 2
"""Of the clocks of a process, the one that counts what its threads ran, those that have ended included."""
_numbers = count()


class ChildFailed(Exception):
    """A system did not do what it was asked."""


class NotSupported(Exception):
    """A system has no such thing."""


class Child:
    """The process of one system."""

    def __init__(self, system: System, process: asyncio.subprocess.Process, log: Path) -> None:
        self.system = system
        self._process, self._log = process, log

    async def ask(self, do: str, *, within: float = _ANSWER_SECONDS, **arguments: Any) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        try:
            await self._process.stdin.drain()
            async with asyncio.timeout(within):
                line = await self._process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        except (TimeoutError, asyncio.CancelledError) as error:
            # Its answer, when it comes, would be taken for that to the next question.
            with suppress(ProcessLookupError):
                self.kill()
            if isinstance(error, TimeoutError):
                raise ChildFailed(f"{self.system.label}: no answer to {do} in {within:.0f} s") from None
            raise
        if not line:
            raise ChildFailed(f"{self.system.label} ended during {do}:\n{self._tail()}")
        answer = json.loads(line)
        if "unsupported" in answer:
            raise NotSupported(answer["unsupported"])
        if "error" in answer:
            raise ChildFailed(f"{self.system.label}, {do}: {answer['error']}\n{self._tail()}")
        result: dict[str, Any] = answer["ok"]
        return result

    async def wait(self, queue: str, count: int | None, *, patience: float) -> dict[str, Any]:
        """Wait until so many were handled, or patience ends."""
        return await self.ask(
            "wait", queue=queue, count=count, patience=patience, within=patience + _END_SECONDS
        )

    def kill(self) -> None:
        """SIGKILL, as the kernel or an orchestrator does it."""
        self._process.send_signal(signal.SIGKILL)

    def processor_seconds(self) -> float:
        """How much processor time it has used: to the nanosecond, where `stat` counts hundredths of a second."""
        return time.clock_gettime(~self._process.pid << 3 | _SCHEDULED)

    def memory_mb(self) -> float:
        """How much of it is resident."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0

    async def end(self) -> None:
        """Close it in peace, or else kill it."""
        if self._process.returncode is None:
            with suppress(ChildFailed, NotSupported):
                await self.ask("close", within=_END_SECONDS)
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_TAIL:]


@asynccontextmanager
async def child(system: System, url: str, logs: Path) -> AsyncIterator[Child]:
    """A process of this system, connected to a database, for as long as the block lasts."""
    python = await asyncio.to_thread(python_for, system.environment)
    log = logs / f"{system.adapter}-{next(_numbers)}.log"
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            python,
            "-m",
            f"benchmarks.adapters.{system.adapter}",
            *(["uvloop"] if system.uvloop else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stream,
            cwd=ROOT,
            limit=2**26,
            env={key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
            # Ctrl-C is for the run, which then ends its children in order.
            start_new_session=True,
        )
    running = Child(system, process, log)
    try:
        await running.ask("open", url=url, profile=system.profile)
        yield running
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        raise
    finally:
        await running.end()
        log.unlink()
