"""The MySQL and MariaDB store. What all SQL stores do is in `stores/sql/store`; this is what only this one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nightmail.clock import Clock, StoreClock
from nightmail.errors import SchemaMissing
from nightmail.findings import Finding
from nightmail.limits import MAX_BODY_BYTES
from nightmail.store import Capabilities
from nightmail.stores.mysql import migrate
from nightmail.stores.mysql.check import check
from nightmail.stores.mysql.claiming import Claims
from nightmail.stores.mysql.connect import connector
from nightmail.stores.mysql.controlling import Controlling
from nightmail.stores.mysql.examining import examine
from nightmail.stores.mysql.inspecting import Inspecting
from nightmail.stores.mysql.joining import Joining
from nightmail.stores.mysql.lane import MIGRATE, PUBLISH, WATCH, Lane, Role
from nightmail.stores.mysql.letters import Letters
from nightmail.stores.mysql.pausing import Pauses
from nightmail.stores.mysql.publishing import Publishing
from nightmail.stores.mysql.redriving import Redriving
from nightmail.stores.mysql.retries import Retries
from nightmail.stores.mysql.runtime import MySQLVerbs, Runtime
from nightmail.stores.mysql.settling import Settling
from nightmail.stores.mysql.sweeping import Sweeping
from nightmail.stores.mysql.text import BacktickNames, LetterNames, Queries
from nightmail.stores.mysql.timers import AT_ONCE, Timers
from nightmail.stores.mysql.wakeups import WakeupPoller
from nightmail.stores.shared.server_store import ServerStore
from nightmail.stores.sql.store import SQLStore

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

FILES: Final = (
    "publish.sql",
    "timers.sql",
    "claim.sql",
    "under_lease.sql",
    "settle.sql",
    "inspect.sql",
    "redrive.sql",
    "sweep.sql",
    "controls.sql",
    "shape.sql",
    "examine.sql",
)
LETTER_FILES: Final = ("under_lease.sql", "letters.sql")
STORE_CLOCK: Final = StoreClock()


class MySQLStore(ServerStore[Runtime], SQLStore):
    """Messages in MariaDB or MySQL, in the tables `nightmail_...` or those that `tables` names.

    `tables` is a `prefix` or `database.prefix`. Tested on MariaDB 10.11; written for MySQL 8 too.
    """

    _cancels_at_once = AT_ONCE
    capabilities: Final = Capabilities(
        name="mysql",
        transactions=True,
        concurrent_writers=True,
        locks_rows=True,
        repeatable_read=True,
        blocking=True,
        pushes_wakeups=False,
        embedded=False,
        connections=5,
    )
    _verbs: MySQLVerbs
    _joining: Joining

    def __init__(
        self,
        source: str | AsyncEngine,
        *,
        tables: str | None = None,
        clock: Clock = STORE_CLOCK,
        keep_delivered: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._connect = connector(source)
        self._names = BacktickNames.parse(tables)
        self._clock = clock
        self._retries = Retries()
        self._sql = sql = Queries(migrate.PACKAGE, FILES, self._names)
        self._letters_sql = Queries(migrate.PACKAGE, LETTER_FILES, LetterNames.parse(tables))
        verbs = MySQLVerbs(
            publishing=Publishing(sql, clock),
            messages=Settling(sql, clock, keep_delivered=keep_delivered),
            letters=Letters(self._letters_sql, clock, max_body_bytes=max_body_bytes),
            timers=Timers(sql, clock),
            inspecting=Inspecting(sql, clock),
            redriving=Redriving(sql, clock),
            sweeping=Sweeping(sql, clock),
            controlling=Controlling(sql, clock),
        )
        joining = Joining(
            sql("identity"), lambda: self._runtime.publish_lane, lambda: self._new_lane(PUBLISH)
        )
        ServerStore.__init__(self)
        SQLStore.__init__(self, verbs, joining, max_body_bytes=max_body_bytes)

    # ------------------------------------------------------------------------------------ lifecycle

    @property
    def retried(self) -> Counter[int]:
        """How often a transient error was retried, by error number."""
        return Counter(self._retries.counted)

    async def ping(self) -> None:
        """See `Store.ping`."""
        await self._runtime.publish_lane.run(lambda link: link.ask("select 1"))

    def schema_sql(self, *, found: int | None = None) -> str:
        """See `Store.schema_sql`."""
        return migrate.script(self._names, found=found)

    async def migrate(self, *, repair: bool = False) -> None:
        """See `Store.migrate`."""
        _ = self._runtime  # Refuses a store that is not open.
        lane = self._new_lane(MIGRATE)
        try:
            await lane.run(lambda link: migrate.migrate(link, self._names, repair=repair))
        finally:
            await lane.close()
        await self._joining.learn()

    async def check(self, *, adopt: bool = True) -> None:
        """See `Store.check`. Also raises `NotAllowed` when the database user lacks a privilege."""
        await self._runtime.publish_lane.run(lambda link: check(link, self._names, self._sql, adopt=adopt))
        try:
            await self._joining.learn()
        except SchemaMissing:
            # Tables that were not adopted have no identity yet.
            if adopt:
                raise

    async def look_ahead(self, queues: Sequence[str]) -> dict[str, timedelta]:
        """See `LooksAhead.look_ahead`."""
        return await self._runtime.look_ahead(queues)

    async def examine(self, *, processes: int = 0) -> list[Finding]:
        """See `Examined.examine`."""
        each = self.capabilities.connections
        return await self._runtime.publish_lane.run(
            lambda link: examine(link, self._sql, processes=processes, each=each)
        )

    # ------------------------------------------------------------------------------------- inside

    def _make(self) -> Runtime:
        self._joining.was_opened = True
        pauses = Pauses(self._sql, self._clock)
        claims = Claims(self._sql, self._clock, self._retries, pauses, max_body_bytes=self._max_body_bytes)
        lane = self._new_lane(WATCH)
        wakeups = WakeupPoller(lane, self._sql, self._letters_sql, self._clock, pauses)
        return Runtime(self._new_lane, self._verbs, claims, wakeups, self._clock)

    def _new_lane(self, role: Role) -> Lane:
        return Lane(role, self._connect, self._retries)
