"""The tables: where they are, when they are right, who may use them, and how they come to be."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from nightmail.errors import NotAllowed, SchemaDrift, SchemaMissing
from nightmail.findings import Code
from nightmail.outcome import Retry
from nightmail.store import Settlement
from nightmail.stores.mysql import MySQLStore
from nightmail.stores.mysql.lane import PUBLISH
from nightmail.testing.conformance.build import HOUR, QUEUE, message
from testkit.servers.mariadb import MariaDB
from tests.schema.conftest import Database
from tests.schema.versions import meta, version_2
from tests.stores.mysql.support import MySQLBackend, connection, open_store, run, user
from tests.stores.shared.documented_roles import DocumentedRoles, found, go_wrong, store_of
from tests.stores.shared.schema import Schema
from tests.stores.support import claim, done, opened

pytestmark = pytest.mark.mysql


class TestDocumentedRoles(DocumentedRoles):
    async def test_an_operator_may_set_timers(self, backend: MySQLBackend) -> None:
        async with backend.opened(), store_of(backend, "operator") as (operator, _):
            await operator.publish(message(timer_id="t", dedup_for=HOUR))
            await operator.publish(message(timer_id="t", on_conflict="replace", ordering_key="k"))
            assert await operator.reschedule(QUEUE, "t", HOUR)
            assert await operator.cancel(QUEUE, "t")

    async def test_a_worker_that_keeps_no_history_finds_what_is_wrong(self, backend: MySQLBackend) -> None:
        async with (
            backend.opened() as store,
            user(backend.url, "worker", only_the_least=True) as url,
            opened(MySQLStore(url)) as worker,
        ):
            await go_wrong(store)

            assert await found(worker) >= {Code.NO_WORKER, Code.KEY_BLOCKED, Code.DEAD_LETTERS_WAITING}


DRIFTS = [
    (
        "drop index nightmail_claim on nightmail_messages",
        "the index nightmail_claim on nightmail_messages is missing",
    ),
    (
        "alter table nightmail_messages drop index nightmail_head, add index nightmail_head (queue_head)",
        "the index nightmail_head on nightmail_messages is '(queue_head)' instead of",
    ),
    (
        "alter table nightmail_messages modify queue_timer varbinary(2041)",
        "the column messages.queue_timer is 'varbinary(2041)' instead of",
    ),
    (
        "alter table nightmail_messages drop index nightmail_claim, "
        "add index nightmail_claim (queue, due_at, id)",
        "the index nightmail_claim on nightmail_messages is '(queue, due_at, id)'",
    ),
    (
        "alter table nightmail_messages drop column expires_at",
        "the column messages.expires_at is missing",
    ),
    (
        "alter table nightmail_messages modify due_at datetime not null",
        "the column messages.due_at is 'datetime not null'",
    ),
    (
        "alter table nightmail_messages modify timer_key varchar(255) character set utf8mb4",
        "the column messages.timer_key is 'varchar(255)",
    ),
    (
        "alter table nightmail_dead modify reason longtext character set utf8mb4 collate utf8mb4_bin",
        "the column dead.reason is",
    ),
    (
        "alter table nightmail_messages drop constraint nightmail_messages_lease",
        "messages_lease is missing",
    ),
    (
        "drop index nightmail_dead_due on nightmail_dead",
        "the index nightmail_dead_due on nightmail_dead is missing",
    ),
    ("alter table nightmail_dead modify due_at datetime(6) not null", "the column dead.due_at is"),
    ("alter table nightmail_dead drop constraint nightmail_dead_given_up", "dead_given_up is missing"),
    ("alter table nightmail_messages add shop varchar(10) not null", "messages.shop is not ours"),
    ("create unique index mine on nightmail_messages (queue(10))", "may refuse messages"),
    ("update nightmail_meta set look_interval = 3600", "look interval"),
    ("drop table nightmail_delivered", "the table `nightmail_delivered` is missing"),
    ("alter table nightmail_dedup engine = aria", "the table dedup is stored by Aria"),
]


class TestSchema(Schema):
    addition = (
        "alter table nightmail_messages add note varchar(10), add made_at datetime not null "
        "default current_timestamp, add index mine (note)"
    )

    @pytest.fixture(params=DRIFTS, ids=[told for _, told in DRIFTS])
    def drift(self, request: pytest.FixtureRequest) -> tuple[str, str]:
        drift: tuple[str, str] = request.param
        return drift


# ------------------------------------------------------------------------------------------- check


async def test_a_missing_database_is_a_missing_table(mysql_url: str) -> None:
    store = MySQLStore(mysql_url, tables="nowhere.jobs")
    await store.open()

    with pytest.raises(SchemaMissing):
        await store.check()
    await store.close()


# ---------------------------------------------------------------------------------------- privileges


async def test_a_user_who_may_use_the_tables_and_nothing_else_will_do(
    mariadb_server: MariaDB,
    mysql_url: str,
) -> None:
    async with open_store(mysql_url):
        pass
    limited = await limited_user(mariadb_server, mysql_url, "select, insert, update, delete")
    async with open_store(limited) as store:
        await store.check()
        await store.publish(message(timer_id="t"))
        await done(store, await claim(store))
        assert await store.stats() == {}


@pytest.mark.parametrize(
    "privileges", ["select", "select, update", "select, delete", "select, update, delete"]
)
async def test_missing_privileges_are_told_at_the_start(
    mariadb_server: MariaDB,
    mysql_url: str,
    privileges: str,
) -> None:
    async with open_store(mysql_url):
        pass
    store = MySQLStore(await limited_user(mariadb_server, mysql_url, privileges))
    await store.open()

    with pytest.raises(NotAllowed, match="to publish, it lacks INSERT on messages"):
        await store.check()
    await store.close()


async def test_a_publisher_of_messages_without_timer_ids_needs_less(mysql_url: str) -> None:
    async with (
        open_store(mysql_url) as owner,
        user(mysql_url, "publisher", only_the_least=True) as url,
        open_store(url) as publisher,
        connection(url) as own,
    ):
        await publisher.check()
        await publisher.publish(message(b"mine"))
        await publisher.publish_batch([message(b"more")])
        await own.begin()
        await publisher.publish(message(b"joined"), transaction=own)
        await own.commit()
        with pytest.raises(NotAllowed, match="denied"):
            await claim(publisher)
        with pytest.raises(NotAllowed, match="denied"):
            await publisher.sweep(older_than=HOUR, limit=1)

        assert len(await claim(owner)) == 3


async def limited_user(server: MariaDB, url: str, privileges: str) -> str:
    """A URL for a user who has only these privileges. The user goes with the server."""
    database = url.rpartition("/")[2]
    user = f"user_{database[-12:]}"
    for statement in (
        f"create or replace user {user}@'127.0.0.1'",
        f"grant {privileges} on `{database}`.* to {user}@'127.0.0.1'",
    ):
        await asyncio.to_thread(server.sql, statement)
    return url.replace("root@", f"{user}@")


# ----------------------------------------------------------------------------------------- migrate


async def test_an_account_that_may_not_make_tables_is_told_which_rights_that_takes(
    mariadb_server: MariaDB, mysql_url: str
) -> None:
    store = MySQLStore(await limited_user(mariadb_server, mysql_url, "select, insert, update, delete"))
    await store.open()

    with pytest.raises(
        NotAllowed, match="GRANT CREATE, ALTER, INDEX, SELECT, INSERT, UPDATE, DELETE"
    ) as raised:
        await store.migrate()
    await store.close()

    # And with what it says it works.
    grant = str(raised.value).partition("GRANT ")[2].partition(". Or")[0]
    await asyncio.to_thread(mariadb_server.sql, f"grant {grant}")
    again = MySQLStore(mysql_url.replace("root@", f"{grant.rpartition(' TO ')[2].split(chr(39))[1]}@"))
    await again.open()
    await again.migrate(repair=True)
    await again.check()
    await again.close()


async def test_the_statements_of_a_migration_can_be_run_by_hand(
    mariadb_server: MariaDB, mysql_url: str
) -> None:
    store = MySQLStore(mysql_url)
    text = "\n".join(line for line in store.schema_sql().splitlines() if not line.lstrip().startswith("--"))
    for statement in text.split(";\n"):
        await run(mysql_url, statement.strip().removesuffix(";"))

    await store.open()
    await store.check()
    await store.migrate()
    assert await store.publish(message()) is not None
    await store.close()


async def test_indexes_that_were_dropped_are_made_again(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message())
        for index, table in (("claim", "messages"), ("head", "messages"), ("dead_due", "dead")):
            await run(mysql_url, f"drop index nightmail_{index} on nightmail_{table}")
        await store.migrate()
        with pytest.raises(SchemaDrift, match="nightmail_claim on nightmail_messages is missing"):
            await store.check()

        await store.migrate(repair=True)

        await store.check()
        assert len(await claim(store)) == 1


async def test_after_a_migration_publishes_wait_no_longer_for_locks_than_before(mysql_url: str) -> None:
    async def patience(store: MySQLStore) -> object:
        runtime = store._opening.now
        assert runtime is not None
        (found,) = await runtime.publish_lane.run(
            lambda link: link.ask("select @@session.lock_wait_timeout, @@session.innodb_lock_wait_timeout")
        )
        return found.rows

    database = Database("mysql", mysql_url)
    async with open_store(mysql_url) as store:
        before = await patience(store)
        with version_2(database):
            await store.migrate(repair=True)

        assert meta(database) == (2, 1)
        assert await patience(store) == before


async def test_a_migration_may_take_longer_than_a_publish(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.stores.mysql.runtime.PUBLISH", replace(PUBLISH, statement_seconds=1))
    database = Database("mysql", mysql_url)
    async with open_store(mysql_url) as store:
        with version_2(database, "-- serves: 1\n\nselect sleep(1.5);\n"):
            await store.migrate()

    assert meta(database) == (2, 1)


async def test_a_migration_that_was_cut_short_is_finished_by_the_next(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await run(mysql_url, "delete from nightmail_meta")
        await run(mysql_url, "drop table nightmail_dedup")
        with pytest.raises(SchemaMissing):
            await store.check()

        await store.migrate()

        await store.check()


async def test_tables_may_have_another_prefix_and_be_in_another_database(
    mariadb_server: MariaDB,
    mysql_url: str,
) -> None:
    with mariadb_server.fresh_database() as elsewhere:
        database = elsewhere.rpartition("/")[2]
        async with (
            open_store(mysql_url, tables=f"{database}.jobs") as there,
            open_store(mysql_url, tables="jobs") as here,
        ):
            await there.check()
            await here.check()
            await there.publish(message(b"there", timer_id="t", ordering_key="k"))
            await here.publish(message(b"here", timer_id="t", ordering_key="k"))
            for store, body in ((there, b"there"), (here, b"here")):
                (delivery,) = await claim(store)
                assert delivery.body == body
                await store.settle([Settlement(delivery, Retry(HOUR))])
                assert await store.cancel(QUEUE, "t")
