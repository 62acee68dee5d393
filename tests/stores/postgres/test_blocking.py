"""A transaction of synchronous code on Postgres, in everything it may live in."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from nightmail.store import Blocking
from nightmail.stores.sql.statements import Statement
from nightmail.testing.conformance.blocking import at_once
from nightmail.testing.conformance.build import SECOND, message
from tests.stores.postgres.support import open_store, sqlalchemy_url
from tests.stores.postgres.sync import BLOCKING_CALLERS
from tests.stores.shared.backend import BeginBlocking
from tests.stores.shared.blocking import BlockingTransactions
from tests.stores.shared.django_transactions import DjangoTransactions, UnseenByDjango

pytestmark = pytest.mark.postgres


class TestBlocking(BlockingTransactions):
    @pytest.fixture(params=BLOCKING_CALLERS.values(), ids=list(BLOCKING_CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> BeginBlocking:
        begin: BeginBlocking = request.param
        return begin


class TestDjango(DjangoTransactions, UnseenByDjango):
    """On this store."""


async def test_rows_come_back_whatever_form_the_caller_wants_theirs_in(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        with psycopg.connect(
            postgres_url, row_factory=psycopg.rows.scalar_row, cursor_factory=psycopg.ClientCursor
        ) as own:
            ids = at_once(store.publish_batch([message(), message()], transaction=Blocking(own)))
            assert own.execute("select %s", ["as before"]).fetchone() == "as before"

        assert [found.id for found in await store.peek()] == ids


async def test_the_synchronous_side_of_an_asynchronous_session_can_be_joined(postgres_url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(postgres_url))
    async with open_store(postgres_url) as store:

        def work(session: Session) -> None:
            at_once(store.publish(message(b"kept"), transaction=Blocking(session)))
            session.execute(text("select 1"))

        async with AsyncSession(engine) as session, session.begin():
            await session.run_sync(work)
            assert await store.peek() == []

        assert [found.body for found in await store.peek()] == [b"kept"]
    await engine.dispose()


async def test_a_day_has_twenty_four_hours_in_the_time_zone_of_a_synchronous_session(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store:
        with psycopg.connect(postgres_url) as own:
            own.execute("set timezone to 'Europe/Berlin'")
            at_once(store.publish(message(due=timedelta(days=182)), transaction=Blocking(own)))

        (found,) = await store.peek()
        assert timedelta(0) <= found.published_at + timedelta(days=182) - found.due_at < SECOND


def test_a_statement_for_drivers_that_format_has_its_other_percent_signs_doubled() -> None:
    statement = Statement("x", "select $1, $2 % 5, $1 like '%s'", ("queue", "count"))

    assert statement.formatted == "select %(queue)s, %(count)s %% 5, %(queue)s like '%%s'"


def test_the_store_imports_nothing_that_only_callers_use() -> None:
    code = """
import sys
from nightmail.stores.postgres import PostgresStore
PostgresStore("postgresql://user@nowhere/nothing")
print(sorted({"psycopg", "psycopg2", "django", "sqlalchemy"} & sys.modules.keys()))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert told.strip() == "[]"
