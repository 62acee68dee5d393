"""The Postgres store: what is its own, and what it gives to the verbs of every SQL store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nightmail.clock import Clock, StoreClock
from nightmail.errors import SchemaMissing
from nightmail.findings import Finding
from nightmail.limits import MAX_BODY_BYTES
from nightmail.store import Capabilities
from nightmail.stores.postgres import examining, migrate
from nightmail.stores.postgres.check import check
from nightmail.stores.postgres.connect import Connect, connector
from nightmail.stores.postgres.controlling import Controlling
from nightmail.stores.postgres.identity import TableIdentity
from nightmail.stores.postgres.inspecting import Inspecting
from nightmail.stores.postgres.joining import Joining
from nightmail.stores.postgres.lane import MIGRATE, Lane
from nightmail.stores.postgres.letters import Letters
from nightmail.stores.postgres.link import Link
from nightmail.stores.postgres.publishing import Publishing
from nightmail.stores.postgres.redriving import Redriving
from nightmail.stores.postgres.runtime import Runtime
from nightmail.stores.postgres.settling import Settling
from nightmail.stores.postgres.sweeping import Sweeping
from nightmail.stores.postgres.timers import Timers
from nightmail.stores.shared.server_store import ServerStore
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.statements import Statement, load
from nightmail.stores.sql.store import SQLStore, Verbs

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

FILES: Final = (
    "publish.sql",
    "timers.sql",
    "claim.sql",
    "settle.sql",
    "under_lease.sql",
    "letters.sql",
    "inspect.sql",
    "redrive.sql",
    "controls.sql",
    "sweep.sql",
    "shape.sql",
    "examine.sql",
)
METAS_CHANNEL: Final = "pg_catalog.concat('nightmail_', pg_catalog.replace(identity::text, '-', ''))"
CHANNEL: Final = f"""(
    select {METAS_CHANNEL} from nightmail_meta limit 1
)"""  # noqa: S608 - our own words
"""Replaces `:channel` in statements: wake-ups belong to the tables, whatever name a store knows them by. Where a row of
`nightmail_meta` is at hand, `:metas_channel` reads it from there."""
PARTS: Final = {"channel": CHANNEL, "metas_channel": METAS_CHANNEL}
STORE_CLOCK: Final = StoreClock()


class PostgresStore(ServerStore[Runtime], SQLStore):
    """Messages in Postgres, in the tables `nightmail_...` or as `tables` names them: `prefix` or `schema.prefix`."""

    capabilities: Final = Capabilities(
        name="postgres",
        transactions=True,
        concurrent_writers=True,
        locks_rows=True,
        repeatable_read=True,
        blocking=True,
        pushes_wakeups=True,
        embedded=False,
        connections=6,
    )

    def __init__(
        self,
        source: str | AsyncEngine,
        *,
        tables: str | None = None,
        clock: Clock = STORE_CLOCK,
        keep_delivered: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._connect: Connect = connector(source)
        self._names = TableNames.parse(tables)
        self._clock = clock
        self._statements = _load(self._names)
        self._tables = TableIdentity(self._statements, self._names)
        self._letters = Letters(self._statements, clock, max_body_bytes=max_body_bytes)
        verbs = Verbs(
            Publishing(self._statements, clock, self._letters),
            Settling(self._statements, clock, keep_delivered=keep_delivered),
            self._letters,
            Timers(self._statements, clock),
            Inspecting(self._statements, clock),
            Redriving(self._statements, clock),
            Sweeping(self._statements, clock),
            Controlling(self._statements, clock),
        )
        ServerStore.__init__(self)
        joining = Joining(self._tables, self._opening.here)
        SQLStore.__init__(self, verbs, joining, max_body_bytes=max_body_bytes)

    # ------------------------------------------------------------------------------------ its life

    @property
    def listening(self) -> bool:
        """Whether wake-ups from other processes arrive."""
        return self._opened is not None and self._opened.listener.listening

    async def ping(self) -> None:
        """See `Store.ping`."""
        await self._runtime.lanes.publish.run(lambda link: link.execute("select 1", timeout=5))

    def schema_sql(self, *, found: int | None = None) -> str:
        """See `Store.schema_sql`."""
        return migrate.script(self._names, found=found)

    async def migrate(self, *, repair: bool = False) -> None:
        """See `Store.migrate`."""

        async def work(link: Link) -> None:
            await migrate.migrate(link, self._names, self._tables.place, repair=repair)
            await self._tables.learn(link)

        _ = self._runtime  # Refuses a store that is not open.
        lane = Lane(MIGRATE, self._connect, self._tables.place)
        try:
            await lane.run(work)
        finally:
            await lane.close()

    async def check(self, *, adopt: bool = True) -> None:
        """See `Store.check`."""

        async def work(link: Link) -> None:
            await check(link, self._names, self._statements, self._tables.place, adopt=adopt)
            try:
                await self._tables.learn(link)
            except SchemaMissing:
                # Tables that were not adopted have no identity yet.
                if adopt:
                    raise

        await self._runtime.lanes.publish.run(work)

    async def look_ahead(self, queues: Sequence[str]) -> dict[str, timedelta]:
        """See `LooksAhead.look_ahead`."""
        return await self._runtime.look_ahead(queues)

    async def examine(self, *, processes: int = 0) -> list[Finding]:
        """See `Examined.examine`."""

        async def work(link: Link) -> examining.Examination:
            return await examining.examine(
                link,
                self._statements,
                self._tables.place,
                processes=processes,
                each=self.capabilities.connections,
            )

        found, can_listen, pooled = await self._runtime.lanes.publish.run(work)
        if pooled or (can_listen and not await self._is_woken()):
            found.append(examining.no_wakeups(pooled=pooled))
        return found

    # ------------------------------------------------------------------------------------- inside

    async def _is_woken(self) -> bool:
        """Whether wake-ups arrive. Every bell rings as soon as the listener has heard an echo of its own."""
        with self.listen(["nightmail"]) as bell:
            return self.listening or await bell.wait(examining.WAKEUP_SECONDS)

    def _make(self) -> Runtime:
        return Runtime(
            self._connect,
            self._statements,
            self._clock,
            self._tables,
            self._verbs,
            self._letters,
            max_body_bytes=self._max_body_bytes,
        )


def _load(names: TableNames) -> dict[str, Statement]:
    statements: dict[str, Statement] = {}
    for file in FILES:
        statements |= load(migrate.PACKAGE, file, names, numbered=True, parts=PARTS)
    for name, statement in load(migrate.PACKAGE, "under_lease.sql", names, numbered=True).items():
        text = statement.text.replace(names.quoted("messages"), names.quoted("dead"))
        statements[f"{name}_dead"] = replace(statement, text=text)
    return statements
