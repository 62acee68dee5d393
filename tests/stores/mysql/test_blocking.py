"""A transaction of synchronous code on MySQL, in everything it may live in, and what cannot be one."""

from __future__ import annotations

from typing import Any

import pytest
from pymysql.cursors import DictCursor
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from nightmail.errors import SchemaMissing
from nightmail.store import Blocking
from nightmail.stores.mysql import MySQLStore
from nightmail.testing.conformance.blocking import at_once
from nightmail.testing.conformance.build import message
from tests.stores.mysql.support import blocking_connection, open_store, sqlalchemy_url, watched_store
from tests.stores.mysql.sync import BLOCKING_CALLERS
from tests.stores.shared.backend import BeginBlocking
from tests.stores.shared.blocking import BlockingTransactions, LearningWhichTablesAreOurs
from tests.stores.shared.django_transactions import DjangoTransactions, UnseenByDjango
from tests.stores.support import claim

pytestmark = pytest.mark.mysql


class TestBlocking(BlockingTransactions, LearningWhichTablesAreOurs):
    @pytest.fixture(params=BLOCKING_CALLERS.values(), ids=list(BLOCKING_CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> BeginBlocking:
        begin: BeginBlocking = request.param
        return begin


class TestDjango(DjangoTransactions, UnseenByDjango):
    """On this store."""


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


async def test_a_store_that_was_opened_needs_no_connection_of_its_own_for_it(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        opened = len(interference.opened)

        with blocking_connection(mysql_url) as own:
            at_once(store.publish(message(timer_id="t"), transaction=Blocking(own)))

        assert interference.packets == []
        assert len(interference.opened) == opened


async def test_a_store_without_tables_says_so_to_synchronous_code(mysql_url: str) -> None:
    store = MySQLStore(mysql_url)
    await store.open()
    with blocking_connection(mysql_url) as own, pytest.raises(SchemaMissing):
        at_once(store.publish(message(), transaction=Blocking(own)))
    await store.close()
