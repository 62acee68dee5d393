"""A Django project publishes inside `transaction.atomic()`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import django.db
import pytest
from django.db import transaction
from django.db.utils import ConnectionHandler

from nightmail.errors import NotInTransaction, OtherDatabase
from nightmail.store import Blocking
from nightmail.testing.conformance.blocking import at_once
from nightmail.testing.conformance.build import bodies, message
from tests.stores.shared.backend import ChangedMyMind, SqlBackend
from tests.stores.shared.callers import django_database


def project(backend: SqlBackend) -> AbstractContextManager[Any]:
    """Django is connected to the database; the wrapper of its connection."""
    return django_database(backend.django_engine, backend.url)


class DjangoTransactions:
    """Beside what all synchronous code does."""

    async def test_outside_an_atomic_block_it_is_told_to_open_one(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            with project(backend):
                own = Blocking(django.db.connection)
                told = r"'default' is not in a transaction.*transaction\.atomic\(\)"
                with pytest.raises(NotInTransaction, match=told):
                    at_once(store.publish(message(), transaction=own))
                assert await store.peek() == []
                with transaction.atomic():
                    at_once(store.publish(message(), transaction=own))

            assert bodies(await store.peek()) == [b"hello"]

    async def test_an_inner_block_that_fails_takes_its_messages_along(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            with project(backend), transaction.atomic():
                at_once(store.publish(message(b"kept"), transaction=Blocking(django.db.connection)))
                with pytest.raises(ChangedMyMind), transaction.atomic():
                    at_once(store.publish(message(b"dropped"), transaction=Blocking(django.db.connection)))
                    raise ChangedMyMind

            assert bodies(await store.peek()) == [b"kept"]

    async def test_a_block_that_will_be_rolled_back_is_refused(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            with project(backend), transaction.atomic():
                transaction.set_rollback(True)
                with pytest.raises((transaction.TransactionManagementError, NotInTransaction)):
                    at_once(store.publish(message(), transaction=Blocking(django.db.connection)))

            assert await store.peek() == []

    async def test_a_connection_of_django_to_another_kind_of_database_is_refused(
        self, backend: SqlBackend
    ) -> None:
        in_memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        with project(backend):
            wrapper = ConnectionHandler({"default": in_memory})["default"]
            wrapper.ensure_connection()
            wrapper.connection.execute("BEGIN")
            wrapper.in_atomic_block = True
            with pytest.raises(OtherDatabase, match=r"sqlite|another database"):
                at_once(backend.store().publish(message(), transaction=Blocking(wrapper)))
            wrapper.connection.close()


class UnseenByDjango:
    """For stores that keep messages out of what Django logs."""

    async def test_a_message_is_neither_in_the_log_nor_among_the_queries_that_django_keeps(
        self, backend: SqlBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with backend.opened() as store:
            with project(backend) as wrapper, transaction.atomic():
                wrapper.force_debug_cursor = True
                with caplog.at_level("DEBUG"):
                    at_once(store.publish(message(b"s3cret"), transaction=Blocking(django.db.connection)))
                logged = [*wrapper.queries, *caplog.messages]

            assert bodies(await store.peek()) == [b"s3cret"]
        assert not [entry for entry in logged if "s3cret" in str(entry) or b"s3cret".hex() in str(entry)]
