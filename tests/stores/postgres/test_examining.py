"""What can be wrong with a Postgres server: each finding is provoked, found, and gone after its remedy."""

from __future__ import annotations

import asyncio
import os
import re
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from nightmail.findings import Code, Finding, Severity
from nightmail.operations.doctor import diagnose
from nightmail.stores.postgres import PostgresStore, examining
from nightmail.testing.conformance.build import message
from nightmail.testing.conformance.workers import a_report
from testkit.pytest_plugin import provide
from testkit.servers import Postgres
from testkit.servers.pgbouncer import PgBouncer
from tests.stores.documented_rights import grants
from tests.stores.postgres.support import connection, open_store, user
from tests.stores.shared.examining import findings
from tests.stores.support import opened, until

pytestmark = pytest.mark.postgres

SETTINGS: Final[dict[str, str | int]] = {
    "max_connections": 20,
    "max_prepared_transactions": 2,
    "wal_level": "logical",
}


@pytest.fixture(scope="module")
def own_server() -> Iterator[Postgres]:
    """A server whose settings a test may change: with few connections, and one that waits for its disk."""
    with provide(Postgres(durable=True, settings=SETTINGS)) as server:
        yield server


@pytest.fixture
def replicated(own_server: Postgres, own_url: str) -> Iterator[str]:
    """A database on a server whose slots are dropped again, also if the test fails."""
    yield own_url
    own_server.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots")


@pytest.fixture
def own_url(own_server: Postgres) -> Iterator[str]:
    with own_server.fresh_database() as url:
        yield url


async def test_a_server_in_order_has_no_findings(own_url: str) -> None:
    async with open_store(own_url) as store:
        assert await store.examine() == []


async def test_a_table_that_autovacuum_leaves_out_is_found(own_url: str) -> None:
    async with open_store(own_url) as store, connection(own_url) as own:
        await own.execute("alter table nightmail_messages set (autovacuum_enabled = off)")
        (found,) = await findings(store, Code.POSTGRES_DEAD_ROWS)
        await own.execute("alter table nightmail_messages reset (autovacuum_enabled)")

        assert found.what == "autovacuum is off for nightmail_messages"
        assert "alter table nightmail_messages reset (autovacuum_enabled)" in found.remedy
        assert await findings(store, Code.POSTGRES_DEAD_ROWS) == []


async def test_dead_rows_that_pile_up_are_found_until_they_are_vacuumed(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "DEAD_ROWS", 100)
    async with open_store(own_url) as store, connection(own_url) as own:
        # Autovacuum would come in between, in its own time.
        await own.execute("alter table nightmail_messages set (autovacuum_vacuum_threshold = 1000000)")
        await store.publish_batch([message() for _ in range(500)])
        await own.execute("delete from nightmail_messages")
        # What a session has counted is told to the others when it is idle, or at its end.
        await own.execute("select pg_stat_force_next_flush()")

        async def is_found() -> bool:
            return bool(await findings(store, Code.POSTGRES_DEAD_ROWS))

        await until(is_found)
        (found,) = await findings(store, Code.POSTGRES_DEAD_ROWS)
        await own.execute("vacuum nightmail_messages")

        assert found.what == "autovacuum does not keep up with nightmail_messages"
        assert "500 dead rows" in found.evidence
        assert await findings(store, Code.POSTGRES_DEAD_ROWS) == []


async def test_who_holds_the_oldest_snapshot_is_found_until_that_ends(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "OLD", timedelta(0))
    async with open_store(own_url) as store, connection(own_url) as own, connection(own_url) as other:
        await own.execute("set application_name = 'the report'")
        async with own.transaction(isolation="repeatable_read"):
            await own.execute("select 1")
            (found,) = await findings(store, Code.POSTGRES_OLD_SNAPSHOT)

        pid = own.get_server_pid()
        assert found.evidence.startswith(
            f"session {pid}, application the report, account postgres: idle in transaction, open for "
        )
        assert f"select pg_terminate_backend({pid})" in found.remedy
        assert await findings(store, Code.POSTGRES_OLD_SNAPSHOT) == []

        await other.execute("begin; select txid_current(); prepare transaction 'forgotten'")
        (prepared,) = await findings(store, Code.POSTGRES_OLD_SNAPSHOT)
        await other.execute("rollback prepared 'forgotten'")

        assert prepared.evidence.startswith("prepared transaction forgotten")
        assert "rollback prepared 'forgotten'" in prepared.remedy
        assert await findings(store, Code.POSTGRES_OLD_SNAPSHOT) == []


async def test_a_slot_whose_reader_is_gone_is_found_until_it_is_dropped(
    replicated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "SLOT_BYTES", 1_000_000)
    monkeypatch.setattr(examining, "SLOT_TRANSACTIONS", 20)
    async with open_store(replicated) as store, connection(replicated) as own:
        # A slot begins at the last checkpoint.
        await own.execute("checkpoint")
        await own.execute("select pg_create_physical_replication_slot('standby', true)")
        await own.execute("select pg_create_logical_replication_slot('feed', 'test_decoding')")
        assert await findings(store, Code.POSTGRES_REPLICATION_SLOT) == []
        await store.publish_batch([message(os.urandom(500_000)) for _ in range(4)])
        (feed, standby) = await findings(store, Code.POSTGRES_REPLICATION_SLOT)
        await own.execute("select pg_drop_replication_slot('standby')")
        for _ in range(21):
            await own.execute("select txid_current()")
        (of_catalogs,) = await findings(store, Code.POSTGRES_REPLICATION_SLOT)
        await own.execute(of_catalogs.remedy.split("`")[1])

        assert (feed.severity, feed.lasting) == (Severity.WARNING, False)
        assert re.fullmatch(r"physical slot, nothing reads it; it keeps \d MB of the log", standby.evidence)
        assert re.fullmatch(
            r"logical slot, nothing reads it; it keeps \d MB of the log, those of the system tables of the last 2\d",
            of_catalogs.evidence,
        )
        assert await findings(store, Code.POSTGRES_REPLICATION_SLOT) == []


async def test_a_standby_that_keeps_dead_rows_is_found_by_its_slot(
    own_server: Postgres, replicated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "SLOT_TRANSACTIONS", 20)
    async with open_store(replicated) as store, connection(replicated) as own:
        begins = await own.fetchval(
            "select lsn::text from pg_create_physical_replication_slot('standby', true)"
        )
        oldest = await own.fetchval("select txid_current()")
        async with a_standby(own_server.port, "standby", begins, xmin=oldest):
            for _ in range(21):
                await own.execute("select txid_current()")
            await until(lambda: _is_found(store, Code.POSTGRES_REPLICATION_SLOT))
            (behind,) = await findings(store, Code.POSTGRES_REPLICATION_SLOT)

        async def is_gone() -> bool:
            return "nothing reads it" in (await findings(store, Code.POSTGRES_REPLICATION_SLOT))[0].evidence

        await until(is_gone)
        await own.execute("select pg_drop_replication_slot('standby')")

        assert re.fullmatch(
            r"physical slot, its reader is behind; it keeps the dead rows of the last 2\d transactions",
            behind.evidence,
        )
        assert "claims get slower" in behind.consequence
        assert await findings(store, Code.POSTGRES_REPLICATION_SLOT) == []


@asynccontextmanager
async def a_standby(port: int, slot: str, begins: str, *, xmin: int) -> AsyncIterator[None]:
    """Read the log through this slot, and say that no row is to be removed that this transaction can see."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def answer(last: bytes) -> None:
        while (kind := await reader.readexactly(1)) != last:
            (length,) = struct.unpack("!i", await reader.readexactly(4))
            said = await reader.readexactly(length - 4)
            assert kind != b"E", said

    options = b"user\0postgres\0replication\0true\0\0"
    writer.write(struct.pack("!ii", len(options) + 8, 196608) + options)
    await answer(b"Z")
    await reader.readexactly(5)
    query = f'START_REPLICATION SLOT "{slot}" PHYSICAL {begins}\0'.encode()
    writer.write(b"Q" + struct.pack("!i", len(query) + 4) + query)
    await answer(b"W")
    # What a standby with hot_standby_feedback sends: its oldest transaction, and no other for system tables.
    feedback = b"h" + struct.pack("!qIIII", 0, xmin, 0, 0, 0)
    writer.write(b"d" + struct.pack("!i", len(feedback) + 4) + feedback)
    await writer.drain()
    try:
        yield
    finally:
        writer.close()
        await writer.wait_closed()


async def _is_found(store: PostgresStore, code: Code) -> bool:
    return bool(await findings(store, code))


async def test_notifications_that_pile_up_are_found_until_the_listener_goes_on(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "QUEUE_SHARE", 1e-6)
    async with open_store(own_url) as store, connection(own_url) as sleepy, connection(own_url) as own:
        await sleepy.execute("listen something")
        async with sleepy.transaction():
            await sleepy.execute("select 1")
            # A few pages of eight kilobytes each, of the eight gigabytes that there are.
            for _ in range(20):
                await own.execute("select pg_notify('something', repeat('x', 7000))")
            (found,) = await findings(store, Code.POSTGRES_NOTIFY_QUEUE)
        await sleepy.execute("unlisten *")
        await own.execute("select pg_notify('something', 'and on')")

        assert found.evidence.endswith("% of it is used")

        async def is_gone() -> bool:
            return not await findings(store, Code.POSTGRES_NOTIFY_QUEUE)

        await until(is_gone)


async def test_a_pooler_that_swallows_wakeups_is_found_and_its_absence_too(
    own_server: Postgres, own_url: str
) -> None:
    async with open_store(own_url) as store:
        assert await findings(store, Code.POSTGRES_NO_WAKEUPS) == []
    with provide(PgBouncer(own_server.url)) as pgbouncer:
        async with open_store(pgbouncer.through(own_url)) as store:
            (found,) = await findings(store, Code.POSTGRES_NO_WAKEUPS)

    assert "connection pooler" in found.evidence


async def test_notifications_that_never_come_are_found_until_they_do(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(own_url) as store:
        with monkeypatch.context() as silent:
            silent.setattr(examining, "WAKEUP_SECONDS", 0.05)
            # As on a server that takes LISTEN and stays silent: the store never hears of its own notification.
            silent.setattr(store._runtime.listener, "_ring", _to_no_one)
            (found,) = await findings(store, Code.POSTGRES_NO_WAKEUPS)

        assert "no notification came" in found.evidence
    async with open_store(own_url) as store:
        assert await findings(store, Code.POSTGRES_NO_WAKEUPS) == []


async def _to_no_one(_channel: str) -> None:
    await asyncio.sleep(0)


async def test_an_unusual_isolation_level_is_found_until_it_is_reset(own_url: str) -> None:
    database = urlsplit(own_url).path[1:]
    async with connection(own_url) as own:
        async with open_store(own_url):
            await own.execute(f"alter database {database} set default_transaction_isolation = 'serializable'")
        async with open_store(own_url) as store:
            (found,) = await findings(store, Code.POSTGRES_ISOLATION)
        await own.execute(f"alter database {database} reset default_transaction_isolation")
        async with open_store(own_url) as store:
            assert await findings(store, Code.POSTGRES_ISOLATION) == []

    assert found.severity is Severity.NOTICE
    assert found.evidence == "default_transaction_isolation = serializable"


@pytest.mark.parametrize(
    ("setting", "severity"),
    [
        ("synchronous_commit", Severity.WARNING),
        ("full_page_writes", Severity.FATAL),
        ("fsync", Severity.FATAL),
    ],
)
async def test_a_server_that_does_not_wait_for_its_disk_is_found_until_it_does(
    own_url: str, setting: str, severity: Severity
) -> None:
    async with open_store(own_url) as store, connection(own_url) as own:
        await own.execute(f"alter system set {setting} = off")
        await own.execute("select pg_reload_conf()")

        async def is_found() -> bool:
            return bool(await findings(store, Code.POSTGRES_DURABILITY))

        await until(is_found)
        (found,) = await findings(store, Code.POSTGRES_DURABILITY)
        for command in re.findall("`(.*?)`", found.remedy):
            await own.execute(command)

        async def is_gone() -> bool:
            return not await is_found()

        await until(is_gone)
    assert (found.severity, found.evidence, found.lasting) == (severity, f"{setting} = off", True)


async def test_a_standby_that_commits_do_not_wait_for_is_found(
    own_server: Postgres, own_url: str, tmp_path: Path
) -> None:
    async with open_store(own_url) as store:
        environment = {**os.environ, "PGAPPNAME": "second"}
        standby = subprocess.Popen(
            ["pg_receivewal", "-d", own_server.url, "-D", str(tmp_path), "--no-loop", "--synchronous"],
            env=environment,
        )

        async def is_found() -> bool:
            return bool(await findings(store, Code.POSTGRES_STANDBYS))

        try:
            await until(is_found)
            (found,) = await findings(store, Code.POSTGRES_STANDBYS)
            async with connection(own_url) as own:
                await own.execute("alter system set synchronous_standby_names = 'second'")
                await own.execute("select pg_reload_conf()")
                await until(lambda: _is_gone(store))
                await own.execute("alter system reset synchronous_standby_names")
                await own.execute("select pg_reload_conf()")
        finally:
            standby.terminate()
            standby.wait(20)

    assert found.evidence == "1 standby, none synchronous: second"


async def _is_gone(store: object) -> bool:
    return not await findings(store, Code.POSTGRES_STANDBYS)  # type: ignore[arg-type]


async def test_a_server_that_runs_out_of_connections_is_found_until_some_are_closed(own_url: str) -> None:
    async with open_store(own_url) as store:
        async with AsyncExitStack() as connections:
            for _ in range(13):
                await connections.enter_async_context(connection(own_url))
            (found,) = await findings(store, Code.POSTGRES_CONNECTIONS)

        async def is_gone() -> bool:
            return not await findings(store, Code.POSTGRES_CONNECTIONS)

        await until(is_gone)
    assert found.evidence.endswith(" of 17 are in use")


async def test_workers_that_may_need_more_connections_than_there_are_are_found_until_there_are_fewer(
    own_url: str,
) -> None:
    async with open_store(own_url) as store:
        for number in range(3):
            await store.report(a_report(f"{number:016x}", pid=number))
        (found,) = await told(store, Code.POSTGRES_CONNECTIONS)
        await store.sign_off(f"{2:016x}")
        fewer = await told(store, Code.POSTGRES_CONNECTIONS)
        # With what other software has, two are too many, too.
        async with AsyncExitStack() as connections:
            for _ in range(6):
                await connections.enter_async_context(connection(own_url))
            (beside,) = await told(store, Code.POSTGRES_CONNECTIONS)

    assert found.what == "the workers may need more connections than this server has"
    assert re.fullmatch(
        r"3 processes with up to 6 each need up to 18, other software has \d; there are 17", found.evidence
    )
    assert fewer == []
    assert re.match(
        r"2 processes with up to 6 each need up to 12, other software has [6-9]; ", beside.evidence
    )


async def test_a_server_that_cannot_be_written_to_is_found_until_it_can(own_url: str) -> None:
    database = urlsplit(own_url).path[1:]
    async with connection(own_url) as own:
        async with open_store(own_url):
            await own.execute(f"alter database {database} set default_transaction_read_only = on")
        async with opened(PostgresStore(own_url), migrate=False) as store:
            (found,) = await told(store, Code.UNSUITABLE_SERVER)
        await own.execute("set default_transaction_read_only = off")
        await own.execute(f"alter database {database} reset default_transaction_read_only")
        async with opened(PostgresStore(own_url), migrate=False) as store:
            assert await told(store, Code.UNSUITABLE_SERVER) == []

    assert (found.severity, found.lasting) == (Severity.FATAL, True)
    assert found.evidence == "transactions of this account are read-only"


async def test_an_account_that_only_looks_is_told_so_until_it_may_work(own_url: str) -> None:
    async with open_store(own_url), user(own_url) as url, connection(own_url) as own:
        name = urlsplit(url).username
        await own.execute(f"grant select on all tables in schema public to {name}")
        async with opened(PostgresStore(url), migrate=False) as store:
            (found,) = await told(store, Code.RIGHTS_MISSING)
            for grant in grants("Postgres", "worker", to=str(name)):
                await own.execute(grant)

            assert await told(store, Code.RIGHTS_MISSING) == []

    assert found.severity is Severity.NOTICE
    assert found.evidence == (
        "the account may neither publish nor work: to publish, it lacks INSERT on messages; to work, it lacks UPDATE "
        "on messages, DELETE on messages, INSERT on dead"
    )


async def told(store: PostgresStore, code: Code) -> list[Finding]:
    """What a doctor finds of this kind."""
    return [each for each in await diagnose(store) if each.code is code]


async def test_a_dropped_index_is_found_until_it_is_repaired(own_url: str) -> None:
    async with open_store(own_url) as store, connection(own_url) as own:
        await own.execute("drop index nightmail_dead_at")
        (found,) = [each for each in await diagnose(store) if each.code is Code.SCHEMA_DRIFT]
        await store.migrate(repair=True)

        assert "nightmail_dead_at" in found.evidence
        assert (found.severity, found.lasting) == (Severity.FATAL, True)
        assert [each for each in await diagnose(store) if each.code is Code.SCHEMA_DRIFT] == []


class Standby(Postgres):
    """A copy of another server, which follows it."""

    programs = ("pg_basebackup", "postgres")

    def __init__(self, primary: Postgres, settings: dict[str, str | int]) -> None:
        super().__init__(settings=settings)
        self._primary = primary

    def prepare(self) -> None:
        self.make_directory("data")
        self.make_directory("sockets")
        self.execute(
            "pg_basebackup",
            f"--dbname={self._primary.url}",
            f"--pgdata={self.data}",
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--no-sync",
        )


async def test_a_standby_is_found_until_it_is_promoted(own_server: Postgres, own_url: str) -> None:
    async with open_store(own_url) as primary:
        await primary.publish(message())
    with provide(Standby(own_server, SETTINGS)) as server:
        url = server.url_of(urlsplit(own_url).path[1:])
        async with opened(PostgresStore(url), migrate=False) as store:
            seen = {each.code: each for each in await diagnose(store)}
            async with connection(url) as own:
                assert await own.fetchval("select pg_promote()")

            assert await told(store, Code.UNSUITABLE_SERVER) == []

    found = seen[Code.UNSUITABLE_SERVER]
    assert (found.severity, found.lasting, found.evidence) == (Severity.FATAL, True, "it is a standby")
    # It takes no LISTEN, which is no fault of a pooler.
    assert Code.POSTGRES_NO_WAKEUPS not in seen
