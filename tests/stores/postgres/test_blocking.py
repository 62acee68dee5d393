"""A transaction of synchronous code on Postgres, in everything it may live in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypeVar

import asyncpg
import django.db
import psycopg
import pytest
from django.db import transaction as django_transaction
from django.db.utils import ConnectionHandler
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase, TimerExists
from nightmail.message import FURTHEST_DUE
from nightmail.records import PendingMessage
from nightmail.store import Blocking
from nightmail.stores.postgres import PostgresStore
from nightmail.stores.sql.statements import Statement
from nightmail.testing.conformance.blocking import at_once
from testkit.servers import Postgres
from tests.stores.postgres.support import (
    HOUR,
    QUEUE,
    SECOND,
    message,
    open_store,
    psycopg_url,
    sqlalchemy_url,
)
from tests.stores.postgres.sync import EVERY_KIND, django_database

pytestmark = pytest.mark.postgres

T = TypeVar("T")
Begin: TypeAlias = Callable[[str], AbstractContextManager[Any]]

every_kind = pytest.mark.parametrize("begin", EVERY_KIND)


class _ChangedMyMind(Exception):
    """Rolls a test's transaction back."""


def elsewhere(work: Coroutine[Any, Any, T]) -> T:
    """Do this in asynchronous code, which ends before synchronous code goes on."""
    return asyncio.run(work)


async def _tables(url: str) -> PostgresStore:
    async with open_store(url) as store:
        return store


async def _pending(url: str) -> list[PendingMessage]:
    async with open_store(url) as store:
        return await store.peek()


def pending(url: str) -> list[bytes]:
    return [found.body for found in elsewhere(_pending(url))]


@pytest.fixture
def url(postgres_url: str) -> str:
    """A database with our tables."""
    elsewhere(_tables(postgres_url))
    return postgres_url


# ------------------------------------------------------------------------------------ what is joined


@every_kind
def test_what_synchronous_code_published_commits_with_its_transaction(url: str, begin: Begin) -> None:
    store = PostgresStore(url)

    with begin(url) as session:
        own = Blocking(session)
        id_ = at_once(store.publish(message(b"one"), transaction=own))
        ids = at_once(store.publish_batch([message(b"two"), message(b"three")], transaction=own))
        assert at_once(store.publish(message(b"four", timer_id="t"), transaction=own)) is not None
        assert at_once(store.publish(message(b"five", timer_id="t"), transaction=own)) is None
        assert pending(url) == []

    found = elsewhere(_pending(url))
    assert [each.body for each in found] == [b"one", b"two", b"three", b"four"]
    assert [each.id for each in found[:3]] == [id_, *ids]


@every_kind
def test_what_synchronous_code_did_rolls_back_with_its_transaction(url: str, begin: Begin) -> None:
    store = PostgresStore(url)
    with begin(url) as session:
        at_once(store.publish(message(b"there", timer_id="t", due=HOUR), transaction=Blocking(session)))

    with pytest.raises(_ChangedMyMind), begin(url) as session:
        own = Blocking(session)
        at_once(store.publish(message(b"one"), transaction=own))
        at_once(store.publish(message(b"two", timer_id="t", on_conflict="replace"), transaction=own))
        assert at_once(store.cancel(QUEUE, "t", transaction=own)) is True
        raise _ChangedMyMind

    assert pending(url) == [b"there"]


@every_kind
def test_timers_are_replaced_moved_and_cancelled_in_synchronous_code(url: str, begin: Begin) -> None:
    store = PostgresStore(url)

    with begin(url) as session:
        own = Blocking(session)
        for name in ("replaced", "moved", "cancelled"):
            at_once(store.publish(message(b"old", timer_id=name, due=HOUR * 2), transaction=own))
        at_once(
            store.publish(
                message(b"new", timer_id="replaced", due=HOUR, on_conflict="replace"), transaction=own
            )
        )
        assert at_once(store.reschedule(QUEUE, "moved", HOUR * 3, transaction=own)) is True
        assert at_once(store.cancel(QUEUE, "cancelled", transaction=own)) is True
        assert at_once(store.cancel(QUEUE, "unknown", transaction=own)) is False

    assert [(found.timer_id, found.body) for found in elsewhere(_pending(url))] == [
        ("replaced", b"new"),
        ("moved", b"old"),
    ]

    with begin(url) as session:
        assert at_once(store.cancel_all(QUEUE, transaction=Blocking(session))) == 2
    assert pending(url) == []


@every_kind
def test_every_value_arrives_as_it_was_given(url: str, begin: Begin) -> None:
    store = PostgresStore(url)
    due = datetime(2040, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    body = b"100% \x00\xff %s %(queue)s $1 '\\"
    headers = {"%s": "%(x)s", "quoted": "'\"\\", "letters": "żółć", "dollar": "$1"}

    with begin(url) as session:
        own = Blocking(session)
        for timer_id in (None, "100% '$1' %s"):
            for policy in ("skip", "replace") if timer_id else ("skip",):
                at_once(
                    store.publish(
                        message(
                            body,
                            queue="50% \\",
                            headers=headers,
                            due=due,
                            priority=9,
                            ordering_key="%",
                            expires_in=timedelta(days=9999, microseconds=1),
                            timer_id=timer_id,
                            on_conflict=policy,
                        ),
                        transaction=own,
                    )
                )

    first, second = elsewhere(_pending(url))
    assert (first.timer_id, second.timer_id) == (None, "100% '$1' %s")
    for found in (first, second):
        assert (found.queue, found.body, found.headers) == ("50% \\", body, headers)
        assert (found.due_at, found.priority, found.ordering_key) == (due, 9, "%")
        assert found.expires_at == found.published_at + timedelta(days=9999, microseconds=1)


@every_kind
@pytest.mark.parametrize("delay", [FURTHEST_DUE, timedelta.min, timedelta(0), timedelta(microseconds=1)])
def test_every_delay_can_be_given(url: str, begin: Begin, delay: timedelta) -> None:
    store = PostgresStore(url)

    with begin(url) as session:
        at_once(store.publish(message(due=delay), transaction=Blocking(session)))
        at_once(store.publish(message(due=delay, timer_id="t"), transaction=Blocking(session)))

    assert len(pending(url)) == 2


@every_kind
def test_a_conflict_leaves_the_transaction_of_synchronous_code_usable(url: str, begin: Begin) -> None:
    store = PostgresStore(url)

    with begin(url) as session:
        own = Blocking(session)
        at_once(store.publish(message(b"first", timer_id="t"), transaction=own))
        with pytest.raises(TimerExists):
            at_once(store.publish(message(b"second", timer_id="t", on_conflict="raise"), transaction=own))
        at_once(store.publish(message(b"third"), transaction=own))

    assert pending(url) == [b"first", b"third"]


# ------------------------------------------------------------------------------------ what is refused


@every_kind
def test_a_store_that_was_opened_before_refuses_tables_other_than_its_own(
    postgres_server: Postgres, url: str, begin: Begin
) -> None:
    store = elsewhere(_tables(url))
    with postgres_server.fresh_database() as other:
        elsewhere(_tables(other))

        with begin(other) as session:
            own = Blocking(session)
            for attempt in (
                lambda: store.publish(message(), transaction=own),
                lambda: store.publish(message(timer_id="t"), transaction=own),
                lambda: store.publish(message(timer_id="t", on_conflict="replace"), transaction=own),
                lambda: store.publish_batch([message()], transaction=own),
                lambda: store.cancel(QUEUE, "t", transaction=own),
                lambda: store.cancel_all(QUEUE, transaction=own),
                lambda: store.reschedule(QUEUE, "t", HOUR, transaction=own),
            ):
                with pytest.raises(OtherDatabase):
                    at_once(attempt())
            # Refused, and yet the transaction goes on.
            at_once(PostgresStore(other).publish(message(b"theirs"), transaction=own))

        assert pending(other) == [b"theirs"]


@every_kind
def test_a_database_without_our_tables_is_refused(postgres_server: Postgres, begin: Begin) -> None:
    with postgres_server.fresh_database() as empty:
        store = PostgresStore(empty)
        with begin(empty) as session:
            for _ in range(2):
                # Refused, and yet the transaction goes on: the second time is no other than the first.
                with pytest.raises(OtherDatabase, match="does not have our tables"):
                    at_once(store.publish(message(), transaction=Blocking(session)))


def refused(url: str, session: object, *, match: str) -> None:
    with pytest.raises(NotInTransaction, match=match):
        at_once(PostgresStore(url).publish(message(), transaction=Blocking(session)))
    assert pending(url) == []


def test_a_psycopg_connection_outside_a_transaction_is_refused(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as own:
        refused(url, own, match=r"use `with connection.transaction\(\)`")
    refused(url, own, match="closed")


@pytest.mark.parametrize("where", ["engine", "connection"])
def test_sqlalchemy_in_autocommit_is_refused(url: str, where: str) -> None:
    options = {"isolation_level": "AUTOCOMMIT"}
    engine = create_engine(psycopg_url(url), **(options if where == "engine" else {}))
    with engine.connect() as own:
        if where == "connection":
            own = own.execution_options(**options)
        refused(url, own, match="AUTOCOMMIT")
    refused(url, own, match="closed")
    with Session(engine) as session:
        if where == "connection":
            session.connection(execution_options=options)
        refused(url, session, match="AUTOCOMMIT")
    engine.dispose()


def test_django_outside_an_atomic_block_is_refused(url: str) -> None:
    with django_database(url):
        refused(
            url, django.db.connection, match=r"'default' is not in a transaction.*transaction\.atomic\(\)"
        )
        with django_transaction.atomic():
            at_once(PostgresStore(url).publish(message(), transaction=Blocking(django.db.connection)))
        assert pending(url) == [b"hello"]


def test_django_on_another_kind_of_database_is_refused(url: str) -> None:
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    with django_database(url):
        wrapper = ConnectionHandler({"default": sqlite})["default"]
        wrapper.in_atomic_block = True
        with pytest.raises(OtherDatabase, match="sqlite"):
            at_once(PostgresStore(url).publish(message(), transaction=Blocking(wrapper)))


def test_sqlalchemy_on_another_kind_of_database_is_refused(url: str) -> None:
    with Session(create_engine("sqlite://")) as session, pytest.raises(OtherDatabase, match="sqlite"):
        at_once(PostgresStore(url).publish(message(), transaction=Blocking(session)))


async def test_what_is_no_transaction_of_synchronous_code_is_refused(postgres_url: str) -> None:
    engine = create_engine(psycopg_url(postgres_url))
    async_engine = create_async_engine(sqlalchemy_url(postgres_url))
    raw = await asyncpg.connect(postgres_url)
    other = await psycopg.AsyncConnection.connect(postgres_url)
    async with AsyncSession(async_engine) as session:
        for wrong in (engine, async_engine, session, raw, other, object(), "a transaction", None):
            with pytest.raises(CannotJoin):
                at_once(PostgresStore(postgres_url).publish(message(), transaction=Blocking(wrong)))
    await raw.close()
    await other.close()
    await async_engine.dispose()


@every_kind
async def test_a_synchronous_session_by_itself_is_refused_with_a_word_on_what_to_use(
    postgres_url: str, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Django refuses to be used where an event loop runs; here it is only looked at.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    async with open_store(postgres_url) as store:
        with begin(postgres_url) as session, pytest.raises(CannotJoin, match="SyncPublisher"):
            await store.publish(message(), transaction=session)
        assert await store.peek() == []


# --------------------------------------------------------------------------------- what is left alone


class _Base(DeclarativeBase):
    pass


class _Note(_Base):
    __tablename__ = "notes"

    value: Mapped[str] = mapped_column(primary_key=True)


def test_a_session_is_neither_flushed_nor_ended(url: str) -> None:
    engine = create_engine(psycopg_url(url))
    _Base.metadata.create_all(engine)
    store = PostgresStore(url)
    with Session(engine) as session:
        note = _Note(value="mine")
        session.add(note)

        at_once(store.publish(message(b"dropped"), transaction=Blocking(session)))

        assert note in session.new
        session.rollback()
        at_once(store.publish(message(b"kept"), transaction=Blocking(session)))
        assert pending(url) == []
        session.commit()

    assert pending(url) == [b"kept"]
    engine.dispose()


def test_rows_come_back_whatever_form_the_caller_wants_theirs_in(url: str) -> None:
    with psycopg.connect(
        url, row_factory=psycopg.rows.scalar_row, cursor_factory=psycopg.ClientCursor
    ) as own:
        ids = at_once(PostgresStore(url).publish_batch([message(), message()], transaction=Blocking(own)))
        assert own.execute("select %s", ["as before"]).fetchone() == "as before"

    assert len(ids) == 2
    assert len(pending(url)) == 2


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


def test_a_day_has_twenty_four_hours_in_the_time_zone_of_a_synchronous_session(url: str) -> None:
    with psycopg.connect(url) as own:
        own.execute("set timezone to 'Europe/Berlin'")
        at_once(PostgresStore(url).publish(message(due=timedelta(days=182)), transaction=Blocking(own)))

    (found,) = elsewhere(_pending(url))
    assert timedelta(0) <= found.published_at + timedelta(days=182) - found.due_at < SECOND


# ------------------------------------------------------------------------------------------ the text


def test_a_statement_for_drivers_that_format_has_its_other_percent_signs_doubled() -> None:
    statement = Statement("x", "select $1, $2 % 5, $1 like '%s'", ("queue", "count"))

    assert statement.formatted == "select %(queue)s, %(count)s %% 5, %(queue)s like '%%s'"


def test_the_store_imports_nothing_that_only_callers_use() -> None:
    code = """
import sys
from nightmail.stores.postgres import PostgresStore
PostgresStore("postgresql://nobody@nowhere/nothing")
print(sorted({"psycopg", "psycopg2", "django", "sqlalchemy"} & sys.modules.keys()))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert told.strip() == "[]"
