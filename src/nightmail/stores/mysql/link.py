"""A driver connection that runs several statements in one round trip.

asyncmy and aiomysql have the same shape, and both let a packet hold several statements. The server runs them one after
the other and stops at the first that fails. Except that it may report one statement late that another node of a Galera
cluster made it roll back. So every write after the first statement checks `Dialect.begun`, and a commit comes last.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, Final

from nightmail.errors import StoreUnavailable
from nightmail.stores.mysql.dialect import MARIADB, Dialect, dialect_of
from nightmail.stores.mysql.errors import NODE_NOT_READY, TooLarge, number_of
from nightmail.stores.mysql.requests import AllOrNone, Answer, Pause, Question, Sees, Server
from nightmail.stores.shared.driver_errors import Broken

LONGEST_IDLE: Final = 300.0
SMALLEST_LIMIT: Final = 1 << 20
"""Every server accepts a packet of this size, however it is configured."""
_ROOM: Final = 1024
READ_COMMITTED: Final = "READ-COMMITTED"


class Link:
    """A connection of our own, and the kind of server at its other end."""

    def __init__(self, connection: Any, dialect: Dialect = MARIADB) -> None:
        self.connection = connection
        self.dialect = dialect
        self._longest_idle = LONGEST_IDLE
        self._largest_packet = SMALLEST_LIMIT
        self._used = time.monotonic()

    async def send(self, request: Any) -> Any:
        """Carry out one request of a verb. Its statements commit by themselves, unless it says `begin`."""
        match request:
            case str():
                return (await self.ask(request))[0]
            case tuple():
                return await self.ask(*request)
            case Question.SERVER:
                return Server(self.dialect, self._largest_packet - _ROOM)
            case Question.CHECK_TABLES:
                return Sees.ALL
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case AllOrNone(statements):
                first, *rest = statements
                if not rest:
                    return await self.ask(first)
                answers = [(await self.ask("begin", first))[1]]
                answers += [(await self.ask(statement))[0] for statement in rest]
                await self.ask("commit")
                return answers
            case _:
                raise TypeError(request)

    async def ask(self, *statements: str) -> list[Answer]:
        """The answers to these statements, in one round trip."""
        text = "; ".join(statements)
        if len(text) + _ROOM > self._largest_packet:
            # Not sent: the server would hang up in the middle of it, without a reason.
            raise TooLarge
        try:
            answers = await ask(self.connection, text)
        except Exception as error:
            if number_of(error) is None:
                raise Broken from error
            raise
        self._used = time.monotonic()
        return answers

    async def prepare(self, statement_seconds: int, *, skips_locked: bool) -> None:
        """Configure the session, and verify that."""
        # The pool that made it may have begun a transaction: a publish in it would never be committed.
        _, version = await self.ask("rollback", "select version()")
        self.dialect = dialect_of(str(version.rows[0][0]))
        lock_wait = 1 if skips_locked else self.dialect.shortest_lock_wait
        own_settings = self.dialect.own_settings.format(seconds=statement_seconds)
        *_, found, wsrep = await self.ask(
            "set session transaction isolation level read committed",
            "set names utf8mb4",
            "set session autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_notes = 0, "
            f"innodb_lock_wait_timeout = {lock_wait}, lock_wait_timeout = 1, {own_settings}",
            f"select {self.dialect.isolation}, @@global.read_only, @@session.wait_timeout, @@max_allowed_packet, "
            "@@session.autocommit",
            "show global status where variable_name in ('wsrep_ready', 'wsrep_cluster_status', 'wsrep_connected')",
        )
        isolation, read_only, wait_timeout, largest, autocommit = found.rows[0]
        if isolation != READ_COMMITTED:
            # At repeatable read an empty claim would block all publishers.
            raise StoreUnavailable(f"the session is at {isolation}, and does not go to {READ_COMMITTED}")
        if str(autocommit) not in ("1", "ON") or self.in_transaction:
            raise StoreUnavailable("the session does not commit each statement by itself")
        if str(read_only) not in ("0", "OFF"):
            raise StoreUnavailable(
                "the server is read-only: is it a replica? The store needs the one that writes"
            )
        _refuse_unready({str(name).lower(): str(value) for name, value in wsrep.rows})
        # Before the server hangs up by itself, and before most proxies do.
        self._longest_idle = min(LONGEST_IDLE, int(wait_timeout) / 2)
        self._largest_packet = int(largest)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, according to the server's last answer."""
        return bool(self.connection.get_transaction_status())

    @property
    def usable(self) -> bool:
        """Whether it is open, outside of any transaction, and not about to be closed as idle, as far as known."""
        idle = time.monotonic() - self._used
        return not is_closed(self.connection) and not self.in_transaction and idle < self._longest_idle

    def terminate(self) -> None:
        """Hang up without telling the server."""
        self.connection.close()

    async def close(self) -> None:
        """Tell the server, and hang up."""
        await self.connection.ensure_closed()


async def ask(connection: Any, text: str) -> list[Answer]:
    """Run a text of one or more statements on any connection of these drivers."""
    async with connection.cursor(_plain_cursor(connection)) as cursor:
        await cursor.execute(text)
        answers = [await _answer(cursor)]
        while await cursor.nextset():
            answers.append(await _answer(cursor))
        return answers


def is_closed(connection: Any) -> bool:
    """Whether this connection is closed on either side, as far as known."""
    if is_asyncmy(connection):
        return not connection.connected or bool(getattr(connection, "_stream_broken", False))
    reader = getattr(connection, "_reader", None)
    return bool(connection.closed) or reader is None or bool(reader.at_eof())


def is_asyncmy(connection: object) -> bool:
    """Whether this connection is from asyncmy, not aiomysql."""
    return type(connection).__module__.startswith("asyncmy")


async def _answer(cursor: Any) -> Answer:
    rows = await cursor.fetchall() if cursor.description else ()
    return Answer(rows, cursor.lastrowid or 0)


def _plain_cursor(connection: Any) -> Any:
    """Rows as tuples, whatever a caller's connection returns by default."""
    if is_asyncmy(connection):
        return sys.modules["asyncmy.cursors"].Cursor
    return sys.modules["aiomysql.cursors"].Cursor


def _refuse_unready(wsrep: dict[str, str]) -> None:
    # A server outside a cluster has none of these, or reports that it is not connected to one.
    in_cluster = wsrep.get("wsrep_connected") == "ON" or wsrep.get("wsrep_cluster_status") == "Primary"
    if not in_cluster and wsrep.get("wsrep_cluster_status", "Disconnected") == "Disconnected":
        return
    if wsrep.get("wsrep_ready") != "ON" or wsrep.get("wsrep_cluster_status") != "Primary":
        raise StoreUnavailable(NODE_NOT_READY)
