"""The connections of the MySQL store. What any SQL store's connection does is in `stores/sql/lane`.

After an error a connection is rolled back, or thrown away. Transient errors are retried; a locked row is not,
unless the work is patient.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

from nightmail.errors import StoreUnavailable
from nightmail.stores.mysql.connect import Connect
from nightmail.stores.mysql.errors import (
    is_locked,
    is_transient,
    leaves_connection_usable,
    translated,
    unreachable,
)
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.retries import TRIES, Retries
from nightmail.stores.shared.driver_errors import below
from nightmail.stores.sql import lane

T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
FAREWELL_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Role:
    """What a connection is for, and how long its statements may wait."""

    name: str
    statement_seconds: int = 10
    """After this the server aborts a statement, where it can, without effect."""
    skips_locked: bool = True
    """Whether it skips locked rows. If not, it need not wait for them either: it lets others go first."""

    @property
    def patience(self) -> float:
        """Seconds after which we stop waiting for an answer: the network must be down, or the server."""
        return self.statement_seconds + 5.0


CLAIM: Final = Role("claim")
SETTLE: Final = Role("settle")
PUBLISH: Final = Role("publish", statement_seconds=30, skips_locked=False)
# An index of a large table takes its time. A migration sets how long it waits for locks.
MIGRATE: Final = Role("migrate", statement_seconds=24 * 3600)
WATCH: Final = Role("watch", statement_seconds=5)
KEEPER: Final = Role("keeper", statement_seconds=5)


class Lane(lane.Lane[Link]):
    """One connection to MariaDB or MySQL, reopened after it was lost or idle for long."""

    closing_seconds: ClassVar = 1.0
    _role: Role

    def __init__(self, role: Role, connect: Connect, retries: Retries) -> None:
        super().__init__(role)
        self._connector = connect
        self._retries = retries

    async def _run(self, work: Callable[[Link], Awaitable[T]], lost: type[StoreUnavailable]) -> T:
        # With all its retries it must not take longer than one try may.
        async with asyncio.timeout(self._role.patience + CONNECT_SECONDS):
            return await super()._run(work, lost)

    async def _connect(self) -> Link:
        link: Link | None = None
        role, connect = self._role, self._connector
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                link = Link(await connect())
                await link.prepare(role.statement_seconds, skips_locked=role.skips_locked)
        except BaseException as error:
            if link is not None:
                link.terminate()
            if isinstance(error, Exception):
                better = unreachable(error, connect.where, connect.password)
                if better is not error:
                    raise better from below(error)
            raise
        return link

    def _translated(self, error: Exception, lost: type[StoreUnavailable]) -> Exception:
        return translated(error, lost)

    def _shown(self, error: Exception) -> Exception | None:
        return below(error)

    async def _clean_up(self, link: Link, error: BaseException) -> bool:
        if is_locked(error):
            self._retries.counted[error.args[0]] += 1
        if leaves_connection_usable(error):
            with suppress(Exception):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await link.ask("rollback")
                return True
        return False

    async def _tries_again(self, error: Exception, attempt: int) -> bool:
        # The driver's error is the cause: it was translated on the way here.
        cause = error.__cause__ or error
        if attempt >= TRIES - 1 or not is_transient(cause) or is_locked(cause):
            return False
        await asyncio.sleep(self._retries.pause(cause, attempt))
        return True
