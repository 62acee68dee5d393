"""One of our connections: its setup and use.

Behind a connection pooler (such as PgBouncer in transaction mode) each transaction may run on another server
connection, which other clients use before and after. So there nothing is set for longer than a transaction, and no
prepared statement has a name. A pooler is recognized by the process id it reports at login, which differs from the one
the server reports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import asyncpg

from nightmail.errors import StoreUnavailable
from nightmail.stores.postgres import array_types
from nightmail.stores.postgres.errors import OF_THE_DRIVER
from nightmail.stores.postgres.place import SEARCH_PATH, Place
from nightmail.stores.postgres.requests import CustomPlan, InTransaction
from nightmail.stores.shared.driver_errors import Broken, driven
from nightmail.stores.sql.verbs import Ask, carry_out

DriverConnection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

ISOLATION: Final = "read committed"
CUSTOM_PLAN: Final = "set local plan_cache_mode to force_custom_plan"
READING: Final = f"{CUSTOM_PLAN}; set local enable_seqscan to on; set local enable_bitmapscan to on"
"""Read-only queries may scan a whole table."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a connection is for, and its timeouts."""

    name: str
    statement_seconds: int = 10
    """After this the server cancels a statement, and nothing of it happens."""
    lock_milliseconds: int = 0
    """After this the server gives up waiting for a locked row; 0: only the statement timeout applies."""

    @property
    def patience(self) -> float:
        """Seconds after which we stop waiting for an answer: the network or the server must be gone."""
        return self.statement_seconds + 5.0

    @property
    def application_name(self) -> str:
        """The connection's name, for operators."""
        return f"nightmail {self.name}"

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of a connection. Not startup parameters: connection poolers refuse them."""
        return {
            "application_name": self.application_name,
            "statement_timeout": f"{self.statement_seconds}s",
            "lock_timeout": f"{self.lock_milliseconds}ms",
            # The statements are written for it: at higher levels the server may fail them at any time.
            "default_transaction_isolation": ISOLATION,
            # A plan made for a small table stays in use while the table grows; these keep it off the whole table.
            "enable_seqscan": "off",
            "enable_bitmapscan": "off",
            # A look at everything takes one core from those who work, and not all of them for a little less time.
            "max_parallel_workers_per_gather": "0",
            # The plan does not depend on the arguments, and planning costs more than most claims.
            "plan_cache_mode": "force_generic_plan",
            # Not `jit`: the driver itself sets and restores that at times.
            "jit_above_cost": "-1",
        }


class NotSent(StoreUnavailable):
    """The connection to Postgres was closed before the statement was sent. Nothing was written: try again."""


class Link:
    """A driver connection in a role. `place` knows the schema of our tables; without it names stay as written."""

    def __init__(self, connection: DriverConnection, role: Role, place: Place | None = None) -> None:
        self.driver = connection
        self.pooled = False
        """Whether a connection pooler is in between."""
        self.sent = False
        """Whether anything was sent since `begin`."""
        self._role = role
        self._place = place
        self._path_is_set = False
        self._in_own_transaction = False

    # ------------------------------------------------------------------------------------ its life

    async def prepare(self) -> None:
        """Apply the role's settings: for the session on a direct connection, to no effect behind a pooler."""
        # A new connection may be in a transaction: a listener of an SQLAlchemy engine ran a statement.
        self._refuse_in_transaction()
        settings = dict(self._role.settings)
        if self._place is not None and self._place.known:
            settings["search_path"] = SEARCH_PATH
        values = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
        text = (
            "select pg_catalog.set_config(s.name, s.value,"  # noqa: S608 - our own names and values
            f" pg_catalog.pg_backend_pid() operator(pg_catalog.<>) {self.driver.get_server_pid()})"
            f" from (values {values}) as s(name, value)"
        )
        await driven(self.driver.execute(text), *OF_THE_DRIVER)
        # The server reports this setting. If it was set for one transaction only, it has its old value again.
        self.pooled = (
            getattr(self.driver.get_settings(), "application_name", "") != settings["application_name"]
        )
        self._path_is_set = "search_path" in settings
        array_types.tell(self.driver.get_settings())

    @property
    def has_tables(self) -> bool:
        """Whether the schema of our tables is known, and the search path set."""
        return self._place is None or self._path_is_set

    async def find_tables(self) -> None:
        """Find the schema of our tables, unless known, and take all other schemas off the search path."""
        if self._place is None or self._path_is_set:
            return
        if not self._place.known:
            statement = self._place.find
            found = await self.fetch(
                statement.text, *statement.arguments({"meta": self._place.quoted("meta")})
            )
            if not found:
                return
            self._place.found(found[0]["schema"])
        if not self.pooled:
            await driven(self.driver.execute(f"set search_path to {SEARCH_PATH}"), *OF_THE_DRIVER)
        self._path_is_set = True

    def begin(self) -> None:
        """Start another piece of work."""
        self.sent = False

    @property
    def usable(self) -> bool:
        """Whether it is open and outside of any transaction, as far as known."""
        return not self.driver.is_closed() and not self.driver.is_in_transaction()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open on it."""
        return not self.driver.is_closed() and self.driver.is_in_transaction()

    def terminate(self) -> None:
        """Drop the connection at once."""
        self.driver.terminate()

    async def close(self) -> None:
        """Close the connection gracefully."""
        await self.driver.close()

    # ---------------------------------------------------------------------------------- statements

    async def send(self, request: Any) -> Any:
        """Carry out one request of a verb."""
        match request:
            case Ask(statement, values):
                # Only in a caller's transaction is the identity of the tables compared.
                arguments = statement.arguments({**values, "identity": None})
                if self.pooled:
                    return await self.fetch(statement.text, *arguments)
                try:
                    return await self.driver.fetch(self._ready(statement.text), *arguments)
                except OF_THE_DRIVER:
                    raise
                except Exception as error:
                    raise Broken from error
            case InTransaction(verb):
                async with self.transaction():
                    return await carry_out(verb, self.send)
            case CustomPlan(statement, values, readonly):
                async with self.transaction(readonly=readonly):
                    await self.execute(READING if readonly else CUSTOM_PLAN)
                    return await self.send(Ask(statement, values))
            case _:
                raise TypeError(f"not a request: {request!r}")

    async def fetch(self, text: str, *arguments: Any) -> list[Any]:
        """Run a statement and return its rows."""
        rows: list[Any]
        if not self.pooled:
            rows = await driven(self.driver.fetch(self._ready(text), *arguments), *OF_THE_DRIVER)
        elif not self._in_own_transaction:
            async with self.transaction():
                rows = await self.fetch(text, *arguments)
        else:
            # Unnamed, it is replaced by the next one: nothing of ours stays on a connection that others use too.
            statement = await driven(self.driver.prepare(self._ready(text), name=""), *OF_THE_DRIVER)
            rows = await driven(statement.fetch(*arguments), *OF_THE_DRIVER)
        return rows

    async def fetchval(self, text: str, *arguments: Any) -> Any:
        """The first value of the first row, or `None`."""
        rows = await self.fetch(text, *arguments)
        return rows[0][0] if rows else None

    async def execute(self, text: str, *arguments: Any, timeout: float | None = None) -> None:
        """Run a statement for its effect; without arguments there may be several in one text."""
        if arguments:
            await self.fetch(text, *arguments)
        elif self.pooled and not self._in_own_transaction:
            async with self.transaction():
                await self._execute(text, timeout=timeout)
        else:
            await self._execute(text, timeout=timeout)

    async def execute_alone(self, text: str) -> None:
        """Run a statement that must be outside a transaction. Behind a pooler it has no timeouts of ours."""
        await self._execute(text)

    @asynccontextmanager
    async def transaction(self, *, readonly: bool = False, isolation: str = ISOLATION) -> AsyncIterator[None]:
        """A transaction of our own around several statements."""
        begin = f"begin isolation level {isolation.replace('_', ' ')}{' read only' if readonly else ''}"
        if self.pooled:
            settings = dict(self._role.settings)
            if self._path_is_set:
                settings["search_path"] = SEARCH_PATH
            begin += "".join(
                f"; set local {name} to {value if name == 'search_path' else repr(value)}"
                for name, value in settings.items()
            )
        await self._execute(begin)
        self._in_own_transaction = True
        try:
            yield
        except Exception:
            # If the rollback fails, the connection is thrown away: one in a transaction is never reused.
            if self.in_transaction:
                with suppress(Exception):
                    await self.driver.execute("rollback")
            raise
        else:
            if await self._execute("commit") != "COMMIT":
                raise StoreUnavailable("Postgres rolled the transaction back: nothing was written")
        finally:
            self._in_own_transaction = False

    async def _execute(self, text: str, *, timeout: float | None = None) -> str:
        return await driven(self.driver.execute(self._ready(text), timeout=timeout), *OF_THE_DRIVER)

    def _ready(self, text: str) -> str:
        """The text to send now: from here on it is unknown what the server has received."""
        if self.driver.is_closed() and not self.sent:
            raise NotSent
        self.sent = True
        return text if self._place is None else self._place.qualified(text)

    def _refuse_in_transaction(self) -> None:
        if self.in_transaction:
            raise StoreUnavailable(
                "a new connection to Postgres is inside a transaction: a listener of the engine's pool began it"
            )
