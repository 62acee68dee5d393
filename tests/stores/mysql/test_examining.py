"""What can be wrong with a MariaDB server: each finding is provoked, found, and gone after its remedy."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from nightmail.findings import Code, Finding, Severity
from nightmail.operations.doctor import diagnose
from nightmail.stores.mysql import MySQLStore, dialect, examining
from nightmail.testing.conformance.build import message
from nightmail.testing.conformance.workers import a_report
from testkit.pytest_plugin import provide
from testkit.servers.mariadb import MariaDB
from tests.stores.documented_rights import grants
from tests.stores.mysql.support import connection, execute, open_store, run, user
from tests.stores.shared.examining import findings
from tests.stores.support import opened, until

pytestmark = pytest.mark.mysql


@pytest.fixture(scope="module")
def own_server() -> Iterator[MariaDB]:
    """A server whose settings a test may change: with few connections and a binary log; it waits for its disk."""
    settings: dict[str, str | int | None] = {
        "max-connections": 20,
        "log-bin": "log",
        "server-id": 1,
        "sync-binlog": 1,
        "innodb-buffer-pool-size": "64M",
    }
    with provide(MariaDB(durable=True, settings=settings)) as server:
        yield server


@pytest.fixture
def own_url(own_server: MariaDB) -> Iterator[str]:
    with own_server.fresh_database() as url:
        yield url


async def test_a_server_in_order_has_no_findings(own_url: str) -> None:
    async with open_store(own_url) as store:
        assert await store.examine() == []


@pytest.mark.parametrize(
    ("setting", "value", "severity"),
    [
        ("innodb_flush_log_at_trx_commit", 0, Severity.FATAL),
        ("innodb_flush_log_at_trx_commit", 2, Severity.WARNING),
        ("sync_binlog", 0, Severity.WARNING),
    ],
)
async def test_commits_that_do_not_wait_for_the_disk_are_found(
    own_url: str, setting: str, value: int, severity: Severity
) -> None:
    async with open_store(own_url) as store:
        await run(own_url, f"set global {setting} = {value}")
        (found,) = await findings(store, Code.MYSQL_DURABILITY)
        await run(own_url, f"set global {setting} = 1")

        assert (found.severity, found.evidence) == (severity, f"{setting} = {value}")
        assert f"set global {setting} = 1" in found.remedy
        assert await findings(store, Code.MYSQL_DURABILITY) == []


async def test_an_unusual_isolation_level_is_found(own_url: str) -> None:
    async with open_store(own_url) as store:
        await run(own_url, "set global transaction isolation level serializable")
        (found,) = await findings(store, Code.MYSQL_ISOLATION)
        await run(own_url, "set global transaction isolation level read committed")

        assert found.evidence == "the global isolation level is SERIALIZABLE"
        assert await findings(store, Code.MYSQL_ISOLATION) == []


async def test_a_replica_that_commits_do_not_wait_for_is_found(
    own_server: MariaDB, own_url: str, tmp_path: Path
) -> None:
    async with open_store(own_url) as store:
        replica = subprocess.Popen(
            [
                "mariadb-binlog", "--no-defaults", "--read-from-remote-server", "--stop-never", "--raw",
                f"--result-file={tmp_path}/", "--host=127.0.0.1", f"--port={own_server.port}", "--user=root",
                "log.000001",
            ]
        )  # fmt: skip

        async def is_found() -> bool:
            return bool(await findings(store, Code.MYSQL_REPLICATION))

        try:
            await until(is_found)
            (found,) = await findings(store, Code.MYSQL_REPLICATION)
            await run(own_url, "set global rpl_semi_sync_master_enabled = 1")
            waits = await findings(store, Code.MYSQL_REPLICATION)
            await run(own_url, "set global rpl_semi_sync_master_enabled = 0")
        finally:
            replica.terminate()
            replica.wait(20)

    assert found.evidence == "1 replica, and semi-synchronous replication is off"
    assert waits == []


async def test_a_server_that_runs_out_of_connections_is_found_until_some_are_closed(own_url: str) -> None:
    async with open_store(own_url) as store:
        async with AsyncExitStack() as connections:
            for _ in range(15):
                await connections.enter_async_context(connection(own_url))
            (found,) = await findings(store, Code.MYSQL_CONNECTIONS)

        async def is_gone() -> bool:
            return not await findings(store, Code.MYSQL_CONNECTIONS)

        await until(is_gone)
    assert found.evidence.endswith(" of 20 are in use")


async def test_workers_that_may_need_more_connections_than_there_are_are_found_until_there_are_fewer(
    own_url: str,
) -> None:
    async with open_store(own_url) as store:
        for number in range(5):
            await store.report(a_report(f"{number:016x}", pid=number))
        (found,) = await told(store, Code.MYSQL_CONNECTIONS)
        await store.sign_off(f"{4:016x}")

        assert found.what == "the workers may need more connections than this server has"
        assert found.evidence.startswith(
            "5 processes with up to 5 each need up to 25; there are 20, of which "
        )
        assert await told(store, Code.MYSQL_CONNECTIONS) == []


async def test_a_server_that_cannot_be_written_to_is_found_until_it_can(own_url: str) -> None:
    async with open_store(own_url) as store:
        await run(own_url, "set global read_only = 1")
        (found,) = await told(store, Code.UNSUITABLE_SERVER)
        await run(own_url, "set global read_only = 0")

        assert (found.severity, found.lasting) == (Severity.FATAL, True)
        assert found.evidence in ("read_only = ON", "read_only = 1")
        assert await told(store, Code.UNSUITABLE_SERVER) == []


async def test_a_server_that_is_too_old_is_found_until_it_is_upgraded(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(own_url):
        pass
    with monkeypatch.context() as demanding:
        demanding.setattr(dialect, "MARIADB", replace(dialect.MARIADB, oldest=(99, 0, 0)))
        async with opened(MySQLStore(own_url), migrate=False) as store:
            (found,) = await told(store, Code.UNSUITABLE_SERVER)

    assert (found.severity, found.lasting) == (Severity.FATAL, True)
    assert found.evidence.endswith("cannot do what is needed: use 99.0.0 or newer")
    async with opened(MySQLStore(own_url), migrate=False) as store:
        assert await told(store, Code.UNSUITABLE_SERVER) == []


async def test_a_transaction_that_stays_open_is_found_until_it_ends(
    own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "LONG", timedelta(seconds=-1))
    async with open_store(own_url) as store, connection(own_url) as own:
        await store.publish(message())
        ((thread,),) = await execute(own, "select connection_id()")
        await own.begin()
        await execute(own, "select id from nightmail_messages for update")

        async def look() -> list[Finding]:
            # The server shows a copy, and makes a new one only if none was read for a tenth of a second.
            await asyncio.sleep(0.15)
            return await findings(store, Code.MYSQL_LONG_TRANSACTION)

        async def is_found() -> bool:
            # It answers a query before it says of its thread that it sleeps.
            idle = f"thread {thread} of root, Sleep: open for "
            return any(
                found.evidence.startswith(idle) and f"kill {thread}" in found.remedy for found in await look()
            )

        async def is_gone() -> bool:
            return not await look()

        await until(is_found)
        await own.rollback()
        await until(is_gone)


async def test_an_account_that_may_not_see_other_sessions_is_examined_all_the_same(own_url: str) -> None:
    async with open_store(own_url), user(own_url, "operator") as url:
        store = MySQLStore(url)
        await store.open()
        assert await store.examine() == []
        await store.close()


async def test_an_account_that_only_looks_is_told_so_until_it_may_work(own_url: str) -> None:
    async with open_store(own_url), user(own_url) as url:
        name, database = urlsplit(url).username, urlsplit(url).path[1:]
        await run(own_url, f"grant select on `{database}`.* to {name}")
        store = MySQLStore(url)
        await store.open()
        (found,) = await told(store, Code.RIGHTS_MISSING)
        for grant in grants("MariaDB and MySQL", "worker", to=str(name)):
            await run(own_url, grant)

        assert found.severity is Severity.NOTICE
        assert await told(store, Code.RIGHTS_MISSING) == []
        await store.close()


async def told(store: MySQLStore, code: Code) -> list[Finding]:
    """What a doctor finds of this kind."""
    return [each for each in await diagnose(store) if each.code is code]


async def test_a_dropped_index_is_found_until_it_is_repaired(own_url: str) -> None:
    async with open_store(own_url) as store:
        ((index,), *_) = await run(
            own_url,
            "select index_name from information_schema.statistics where table_schema = database() and "
            "table_name = 'nightmail_dead' and index_name <> 'PRIMARY' order by index_name",
        )
        await run(own_url, f"drop index {index} on nightmail_dead")
        (found,) = [each for each in await diagnose(store) if each.code is Code.SCHEMA_DRIFT]
        await store.migrate(repair=True)

        assert index in found.evidence
        assert [each for each in await diagnose(store) if each.code is Code.SCHEMA_DRIFT] == []
