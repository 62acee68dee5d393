"""A transaction of synchronous code on MySQL, in everything it may live in, and what cannot be one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any, TypeAlias

import asyncmy
import django.db
import pymysql
import pytest
from django.db import transaction as django_transaction
from pymysql.cursors import DictCursor
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase, SchemaMissing, TimerExists
from nightmail.store import Blocking
from nightmail.stores.mysql import MySQLStore
from nightmail.testing.conformance.blocking import at_once
from testkit.servers.mariadb import MariaDB
from tests.stores.mysql.support import (
    HOUR,
    QUEUE,
    blocking_arguments,
    blocking_connection,
    claim,
    connection,
    done,
    message,
    open_store,
    run,
    sqlalchemy_url,
    watched_store,
)
from tests.stores.mysql.sync import EVERY_KIND, django_database

pytestmark = pytest.mark.mysql

Begin: TypeAlias = Callable[[str], AbstractContextManager[Any]]

every_kind = pytest.mark.parametrize("begin", EVERY_KIND)


class _ChangedMyMind(Exception):
    """Rolls a test's transaction back."""


@pytest.fixture(params=["opened", "never opened"])
async def stores(request: pytest.FixtureRequest, mysql_url: str) -> Any:
    """The store that synchronous code has, and one to look with."""
    async with open_store(mysql_url) as looking:
        yield (looking if request.param == "opened" else MySQLStore(mysql_url)), looking


# ------------------------------------------------------------------------------------ what is joined


@every_kind
async def test_what_synchronous_code_published_commits_with_its_transaction(
    mysql_url: str, begin: Begin, stores: tuple[MySQLStore, MySQLStore]
) -> None:
    store, looking = stores
    with begin(mysql_url) as own:
        transaction = Blocking(own)
        id_ = at_once(store.publish(message(b"one"), transaction=transaction))
        ids = at_once(store.publish_batch([message(b"two"), message(b"three")], transaction=transaction))
        assert at_once(store.publish(message(b"four", timer_id="t"), transaction=transaction))
        assert at_once(store.publish(message(b"five", timer_id="t"), transaction=transaction)) is None
        with pytest.raises(TimerExists):
            at_once(
                store.publish(message(b"six", timer_id="t", on_conflict="raise"), transaction=transaction)
            )
        assert await claim(looking) == []

    deliveries = await claim(looking)
    assert [delivery.body for delivery in deliveries] == [b"one", b"two", b"three", b"four"]
    assert [delivery.id for delivery in deliveries[:3]] == [id_, *ids]


@every_kind
async def test_what_synchronous_code_published_rolls_back_with_its_transaction(
    mysql_url: str, begin: Begin, stores: tuple[MySQLStore, MySQLStore]
) -> None:
    store, looking = stores
    await looking.publish(message(b"there", timer_id="there"))
    with pytest.raises(_ChangedMyMind), begin(mysql_url) as own:
        transaction = Blocking(own)
        at_once(store.publish(message(), transaction=transaction))
        at_once(store.publish(message(timer_id="t", on_conflict="replace"), transaction=transaction))
        assert at_once(store.cancel(QUEUE, "there", transaction=transaction))
        raise _ChangedMyMind

    assert [delivery.body for delivery in await claim(looking)] == [b"there"]
    assert await looking.publish(message(timer_id="t")) is not None


@every_kind
async def test_synchronous_code_cancels_and_reschedules_in_its_transaction(
    mysql_url: str, begin: Begin, stores: tuple[MySQLStore, MySQLStore]
) -> None:
    store, looking = stores
    for name in ("a", "b", "c"):
        await looking.publish(message(name.encode(), timer_id=name))

    with begin(mysql_url) as own:
        transaction = Blocking(own)
        assert at_once(store.cancel(QUEUE, "a", transaction=transaction)) is True
        assert at_once(store.cancel(QUEUE, "a", transaction=transaction)) is False
        assert at_once(store.reschedule(QUEUE, "b", HOUR, transaction=transaction)) is True
        assert at_once(store.reschedule(QUEUE, "d", HOUR, transaction=transaction)) is False

    assert [delivery.body for delivery in await claim(looking)] == [b"c"]
    assert [found.body for found in await looking.peek()] == [b"b"]


@every_kind
async def test_the_callers_transaction_goes_on_after_a_name_was_taken(
    mysql_url: str, begin: Begin, stores: tuple[MySQLStore, MySQLStore]
) -> None:
    store, looking = stores
    await looking.publish(message(b"there", timer_id="t", due=HOUR))
    with begin(mysql_url) as own:
        transaction = Blocking(own)
        at_once(store.publish(message(b"before"), transaction=transaction))
        for _ in range(2):
            # At repeatable read it is found out by a duplicate key, which is the store's business alone.
            assert at_once(store.publish(message(timer_id="t"), transaction=transaction)) is None
        at_once(store.publish(message(b"after"), transaction=transaction))

    assert [delivery.body for delivery in await claim(looking)] == [b"before", b"after"]


async def test_nothing_is_committed_begun_or_flushed_in_a_callers_session(mysql_url: str) -> None:
    engine = create_engine(sqlalchemy_url(mysql_url, "pymysql"), poolclass=NullPool)
    sent: list[str] = []
    async with open_store(mysql_url) as store:
        with Session(engine) as session:
            session.execute(text("select 1"))
            driver: Any = session.connection().connection.driver_connection
            sending = driver.query

            def query(sql: Any, *rest: Any) -> Any:
                sent.append(sql if isinstance(sql, str) else sql.decode())
                return sending(sql, *rest)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(driver, "query", query)
                at_once(store.publish(message(b"plain"), transaction=Blocking(session)))
                at_once(store.publish(message(b"named", timer_id="t"), transaction=Blocking(session)))

        verbs = [statement.split()[0].lower() for statement in sent]
        assert set(verbs) == {"insert", "select"}
        assert await claim(store) == []


async def test_a_callers_own_kind_of_rows_is_no_hindrance(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        with blocking_connection(mysql_url, cursorclass=DictCursor) as own:
            ids = at_once(store.publish_batch([message(), message()], transaction=Blocking(own)))
            at_once(store.publish(message(timer_id="t"), transaction=Blocking(own)))

        assert [delivery.id for delivery in await claim(store)][:2] == ids


async def test_the_statements_of_a_message_are_not_in_djangos_log(
    mysql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(mysql_url) as store:
        with django_database(mysql_url) as wrapper, django_transaction.atomic():
            wrapper.force_debug_cursor = True
            with caplog.at_level("DEBUG"):
                at_once(store.publish(message(b"secret"), transaction=Blocking(django.db.connection)))
            logged = [*wrapper.queries, *caplog.messages]

        assert not [entry for entry in logged if b"secret".hex() in str(entry)]


async def test_an_inner_atomic_block_of_django_that_fails_takes_its_messages_along(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        with django_database(mysql_url), django_transaction.atomic():
            at_once(store.publish(message(b"kept"), transaction=Blocking(django.db.connection)))
            with pytest.raises(_ChangedMyMind), django_transaction.atomic():
                at_once(store.publish(message(b"dropped"), transaction=Blocking(django.db.connection)))
                raise _ChangedMyMind

        assert [delivery.body for delivery in await claim(store)] == [b"kept"]


async def test_a_broken_transaction_of_djangos_is_refused_as_django_does(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        with django_database(mysql_url), django_transaction.atomic():
            django_transaction.set_rollback(True)
            with pytest.raises(django_transaction.TransactionManagementError):
                refused(store, django.db.connection)


async def test_peek_in_a_transaction_of_synchronous_code_sees_what_it_published(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        with blocking_connection(mysql_url) as own:
            at_once(store.publish(message(b"own"), transaction=Blocking(own)))

            found = at_once(store.peek(transaction=Blocking(own)))
            assert await store.peek() == []

        assert [each.body for each in found] == [b"own"]


async def test_a_store_that_was_opened_needs_no_connection_of_its_own_for_it(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        opened = len(interference.opened)

        with blocking_connection(mysql_url) as own:
            at_once(store.publish(message(timer_id="t"), transaction=Blocking(own)))

        assert interference.packets == []
        assert len(interference.opened) == opened


# ----------------------------------------------------------------------------------- what is refused


def refused(store: MySQLStore, session: Any) -> None:
    at_once(store.publish(message(b"refused"), transaction=Blocking(session)))


async def test_a_synchronous_connection_outside_a_transaction_is_refused(
    mysql_url: str, stores: tuple[MySQLStore, MySQLStore]
) -> None:
    store, looking = stores
    with closing(pymysql.connect(**blocking_arguments(mysql_url), autocommit=True)) as own:
        with pytest.raises(NotInTransaction, match="begin"):
            refused(store, own)
        own.begin()
        own.commit()
        with pytest.raises(NotInTransaction, match="begin"):
            refused(store, own)
    with pytest.raises(NotInTransaction):
        refused(store, own)
    with django_database(mysql_url), pytest.raises(NotInTransaction, match="atomic"):
        refused(store, django.db.connection)
    assert await looking.peek() == []


@pytest.mark.parametrize("where", ["engine", "connection"])
async def test_autocommit_is_refused_in_synchronous_code(
    mysql_url: str, where: str, stores: tuple[MySQLStore, MySQLStore]
) -> None:
    store, looking = stores
    options = {"isolation_level": "AUTOCOMMIT"}
    url = sqlalchemy_url(mysql_url, "pymysql")
    engine = create_engine(url, poolclass=NullPool, **(options if where == "engine" else {}))
    with engine.connect() as own, pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
        refused(store, own.execution_options(**options) if where == "connection" else own)
    with Session(engine) as session:
        if where == "connection":
            session.connection(execution_options=options)
        with pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
            refused(store, session)
    assert await looking.peek() == []


async def test_what_is_no_synchronous_transaction_is_refused(mysql_url: str) -> None:
    engine = create_engine(sqlalchemy_url(mysql_url, "pymysql"), poolclass=NullPool)
    store = MySQLStore(mysql_url)
    async with connection(mysql_url, asyncmy) as asynchronous:
        for wrong in (engine, asynchronous, object(), "a transaction", None):
            with pytest.raises(CannotJoin):
                refused(store, wrong)


@every_kind
async def test_a_synchronous_session_that_is_not_said_to_block_is_refused_with_what_to_use(
    mysql_url: str, begin: Begin
) -> None:
    async with open_store(mysql_url) as store:
        with begin(mysql_url) as own, pytest.raises(CannotJoin, match="SyncPublisher"):
            await store.publish(message(), transaction=own)


async def test_a_synchronous_session_of_another_kind_of_database_is_refused(mysql_url: str) -> None:
    store = MySQLStore(mysql_url)
    with Session(create_engine("sqlite://")) as session, pytest.raises(OtherDatabase, match="sqlite"):
        refused(store, session)


@every_kind
@pytest.mark.parametrize("with_tables", [False, True])
async def test_a_synchronous_transaction_in_another_database_is_refused(
    mariadb_server: MariaDB, mysql_url: str, begin: Begin, with_tables: bool
) -> None:
    with mariadb_server.fresh_database() as elsewhere:
        if with_tables:
            async with open_store(elsewhere):
                pass
        async with open_store(mysql_url) as store:
            with begin(elsewhere) as own:
                for verb in (
                    store.publish(message(), transaction=Blocking(own)),
                    store.publish(message(timer_id="t"), transaction=Blocking(own)),
                    store.publish_batch([message()], transaction=Blocking(own)),
                    store.cancel(QUEUE, "t", transaction=Blocking(own)),
                    store.reschedule(QUEUE, "t", HOUR, transaction=Blocking(own)),
                ):
                    with pytest.raises(OtherDatabase):
                        at_once(verb)
        if with_tables:
            assert await run(elsewhere, "select count(*) from nightmail_messages") == [(0,)]


@every_kind
async def test_a_store_that_was_never_opened_refuses_where_there_are_no_tables(
    mysql_url: str, begin: Begin
) -> None:
    with begin(mysql_url) as own, pytest.raises(OtherDatabase, match="tables"):
        refused(MySQLStore(mysql_url), own)


# ------------------------------------------------------------------------ whose tables they are


@pytest.fixture
def elsewhere(mariadb_server: MariaDB) -> Iterator[str]:
    with mariadb_server.fresh_database() as url:
        yield url


async def test_a_store_that_was_opened_and_asked_nothing_yet_finds_out_which_tables_are_its_own(
    mysql_url: str, elsewhere: str
) -> None:
    for url in (mysql_url, elsewhere):
        async with open_store(url):
            pass
    store = MySQLStore(mysql_url)
    await store.open()
    with blocking_connection(elsewhere) as own, pytest.raises(OtherDatabase):
        refused(store, own)
    with blocking_connection(mysql_url) as own:
        at_once(store.publish(message(b"ours"), transaction=Blocking(own)))

    assert [delivery.body for delivery in await claim(store)] == [b"ours"]
    await store.close()


async def test_a_store_that_was_closed_still_knows_its_tables(mysql_url: str, elsewhere: str) -> None:
    async with open_store(elsewhere):
        pass
    async with open_store(mysql_url) as store:
        pass
    with blocking_connection(elsewhere) as own, pytest.raises(OtherDatabase):
        refused(store, own)
    with blocking_connection(mysql_url) as own:
        at_once(store.publish(message(), transaction=Blocking(own)))


async def test_tables_that_were_made_anew_are_known_again_to_synchronous_code(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await run(mysql_url, "update nightmail_meta set identity = unhex(replace(uuid(), '-', ''))")

        with blocking_connection(mysql_url) as own:
            at_once(store.publish(message(b"after"), transaction=Blocking(own)))

        (delivery,) = await claim(store)
        assert delivery.body == b"after"
        await done(store, [delivery])


async def test_a_store_without_tables_says_so_to_synchronous_code(mysql_url: str) -> None:
    store = MySQLStore(mysql_url)
    await store.open()
    with blocking_connection(mysql_url) as own, pytest.raises(SchemaMissing):
        refused(store, own)
    await store.close()
