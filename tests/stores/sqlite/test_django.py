"""A Django project publishes inside `transaction.atomic()`, which begins without the write lock unless told to."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import django.db
import pytest
from django.db import transaction

from nightmail.errors import Refused, StaleTransaction
from nightmail.store import Blocking
from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.conformance.blocking import at_once
from nightmail.testing.conformance.build import bodies, message
from tests.stores.shared.callers import django_database
from tests.stores.shared.django_transactions import DjangoTransactions, UnseenByDjango, project
from tests.stores.sqlite.support import SQLiteBackend

pytestmark = pytest.mark.sqlite


def execute(statement: str) -> list[Any]:
    with django.db.connection.cursor() as cursor:
        return list(cursor.execute(statement).fetchall())


class TestDjango(DjangoTransactions, UnseenByDjango):
    async def test_a_block_that_read_before_another_wrote_is_refused_with_advice(
        self, store: SQLiteStore, backend: SQLiteBackend, file: Path
    ) -> None:
        with project(backend), transaction.atomic():
            execute("SELECT count(*) FROM effects")
            with closing(sqlite3.connect(file)) as other, other:
                other.execute("INSERT INTO effects VALUES ('meanwhile')")

            with pytest.raises(StaleTransaction, match='"transaction_mode": "IMMEDIATE"'):
                at_once(store.publish(message(), transaction=Blocking(django.db.connection)))

        assert await backend.run("SELECT value FROM effects") == [("meanwhile",)]
        assert await store.peek() == []

    async def test_a_block_that_begins_immediately_may_read_first(
        self, store: SQLiteStore, backend: SQLiteBackend
    ) -> None:
        with django_database("sqlite3", backend.url, transaction_mode="IMMEDIATE"), transaction.atomic():
            execute("SELECT count(*) FROM effects")
            with (
                closing(sqlite3.connect(backend.file, timeout=0)) as other,
                pytest.raises(sqlite3.OperationalError, match="database is locked"),
            ):
                other.execute("INSERT INTO effects VALUES ('meanwhile')")
            at_once(store.publish(message(), transaction=Blocking(django.db.connection)))

        assert bodies(await store.peek()) == [b"hello"]

    async def test_a_row_that_is_refused_leaves_the_block_usable_and_the_message_unseen(
        self, store: SQLiteStore, backend: SQLiteBackend
    ) -> None:
        await backend.refuse("s3cret")
        with project(backend), transaction.atomic():
            execute("INSERT INTO effects VALUES ('effect')")
            with pytest.raises(Refused) as raised:
                at_once(store.publish(message(b"s3cret"), transaction=Blocking(django.db.connection)))
            execute("SELECT 1")

        assert str(raised.value) == "SQLite refused the row (SQLITE_CONSTRAINT_TRIGGER): no"
        assert await backend.run("SELECT value FROM effects") == [("effect",)]
