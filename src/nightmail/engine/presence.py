"""One process among those that work on a store: its name in every lease it takes, and its sign of life.

    first worker starts ── report ──10 s── report ── … ── last worker stops ── sign off

The report is sent from the event loop, not by the keeper's thread, on purpose: a process whose event loop is blocked
renews its leases and gets nothing done. It falls silent here, and that is how an operator can tell.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import UUID

from nightmail._version import __version__
from nightmail.controls import WORKER_ID_BYTES, WorkerReport
from nightmail.engine.dead_letters import DeadLetters
from nightmail.engine.shutdown import ends_by, undisturbed
from nightmail.store import Control, Source

REPORT_SECONDS: Final = 10.0
"""How often a process reports itself."""
SETTLING_SECONDS: Final = 0.5
"""How long to wait for more workers to start or stop before that is reported."""

_log: Final = logging.getLogger("nightmail")


class Member(Protocol):
    """A worker, as its process reports it."""

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues it serves."""
        ...

    def state(self) -> dict[str, Any]:
        """What it says about itself: JSON."""
        ...


class Presence:
    """Shared by the workers of one process: one id, one report."""

    def __init__(
        self,
        about: Mapping[str, Any] | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`about` is reported in addition: JSON. `now` is the clock of this machine."""
        self._about = dict(about or {})
        self._now = now
        self._members: list[Member] = []
        self._id = b""
        self._pid = 0
        self._started = ""
        self._changed = asyncio.Event()
        self._was_reported = False
        self._reporting: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """The id that its leases carry. After a fork it is another: two processes must not be taken for one."""
        return self._own_id().hex()

    @property
    def name(self) -> str:
        """How it is called where a person reads it."""
        return f"{socket.gethostname()}/{os.getpid()}"

    @property
    def is_shared(self) -> bool:
        """Whether more than one worker is at work in this process."""
        return len(self._members) > 1

    def new_token(self) -> UUID:
        """A token for a claim, which says who made it."""
        return UUID(bytes=self._own_id() + os.urandom(16 - WORKER_ID_BYTES))

    def report(self, members: Sequence[Member]) -> WorkerReport:
        """What it says about itself now, with these workers."""
        states = [member.state() for member in members]
        queues = {
            queue
            for member, state in zip(members, states, strict=True)
            if not state.get("dead_letters")
            for queue in member.queues
        }
        return WorkerReport(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            queues=tuple(sorted(queues)),
            state={
                "subscribers": states,
                "started": self._started,
                # Beside the store's own time of the report it tells whether this machine's clock is right.
                "clock": self._now().isoformat(timespec="milliseconds"),
                "python": platform.python_version(),
                **self._about,
            },
        )

    def join(self, member: Member, source: Source, *, at_once: bool = True) -> None:
        """This worker starts. Unless `at_once`, the first report waits for its turn: it may be gone by then."""
        if not self._members:
            if self._was_reported:
                # Another life: the record of the one before may be removed only now.
                self._id, self._was_reported = b"", False
            self._started = self._now().isoformat(timespec="seconds")
        self._members.append(member)
        control = control_of(source)
        if self._reporting is not None:
            self._changed.set()
        elif control is not None:
            self._changed = asyncio.Event()  # The one before may belong to another event loop.
            self._reporting = asyncio.create_task(self._report_regularly(control, at_once))

    async def leave(self, member: Member, source: Source, by: float) -> None:
        """It has stopped. The last one signs off, if the store answers before `by`."""
        self._members.remove(member)
        self._changed.set()
        reporting, control = self._reporting, control_of(source)
        if self._members or reporting is None or control is None:
            return
        self._reporting = None
        await ends_by(by, self._sign_off(control, reporting, self.id))

    async def _report_regularly(self, control: Control, at_once: bool) -> None:
        due = time.monotonic() + (0.0 if at_once else REPORT_SECONDS)
        while self._members:
            if (wait := due - time.monotonic()) <= 0:
                await self._send(control)
                due, wait = time.monotonic() + REPORT_SECONDS, REPORT_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
                self._changed.clear()
                due = min(due, time.monotonic() + SETTLING_SECONDS)
            except TimeoutError:
                continue

    async def _send(self, control: Control) -> None:
        self._was_reported = True
        try:
            await control.report(self.report(self._members))
        except Exception as error:  # noqa: BLE001 - messages matter, and what fails them is reported by their workers
            _log.debug("this process could not report itself: %s", type(error).__name__)

    async def _sign_off(self, control: Control, reporting: asyncio.Task[None], id_: str) -> None:
        # After the last report has arrived, or it would bring the record back.
        await undisturbed(reporting)
        if not self._was_reported:
            return  # It was gone before it could report.
        try:
            await control.sign_off(id_)
        except Exception as error:  # noqa: BLE001 - then it is forgotten after a day
            _log.debug("this process could not sign off: %s", type(error).__name__)

    def _own_id(self) -> bytes:
        if not self._id or self._pid != os.getpid():
            self._id, self._pid = os.urandom(WORKER_ID_BYTES), os.getpid()
        return self._id


def control_of(source: Source) -> Control | None:
    """The store behind a source, if it has these verbs: a store of another make need not."""
    store: object = source.store if isinstance(source, DeadLetters) else source
    return store if isinstance(store, Control) else None
