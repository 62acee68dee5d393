"""What synchronous code may have its transaction on MySQL in. Django is configured once, for the whole process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import django.db
import pymysql
import pytest
from django.apps import apps
from django.conf import settings
from django.db import transaction
from django.db.utils import ConnectionHandler
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from nightmail.store import Blocking
from tests.stores.mysql.support import (
    DriverHarness,
    blocking_arguments,
    blocking_connection,
    sqlalchemy_url,
)

# Django knows only mysqlclient. Where it is not installed, for it has to be compiled, PyMySQL passes for it.
if find_spec("MySQLdb") is None:
    pymysql.install_as_MySQLdb()


@contextmanager
def without_autocommit(url: str) -> Iterator[Any]:
    own = pymysql.connect(**blocking_arguments(url), autocommit=False)
    try:
        yield own
        own.commit()
    finally:
        # Whatever was not committed is rolled back.
        own.close()


@contextmanager
def sqlalchemy_connection(url: str) -> Iterator[Any]:
    engine = create_engine(sqlalchemy_url(url, "pymysql"), poolclass=NullPool)
    with engine.begin() as own:
        yield own


@contextmanager
def sqlalchemy_session(url: str) -> Iterator[Any]:
    engine = create_engine(
        sqlalchemy_url(url, "pymysql"), poolclass=NullPool, isolation_level="READ COMMITTED"
    )
    with Session(engine) as session, session.begin():
        yield session


@contextmanager
def sqlalchemy_scoped_session(url: str) -> Iterator[Any]:
    registry = scoped_session(sessionmaker(create_engine(sqlalchemy_url(url, "pymysql"), poolclass=NullPool)))
    try:
        with registry.begin():
            yield registry
    finally:
        registry.remove()


@contextmanager
def django_database(url: str) -> Iterator[Any]:
    """Django's default connection of this thread, to this database."""
    if not settings.configured:
        settings.configure(USE_TZ=True)
    # Before that Django warns about every statement.
    apps.populate(())
    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.mysql",
        "HOST": parts.hostname,
        "PORT": str(parts.port),
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "NAME": parts.path.removeprefix("/"),
    }
    wrapper = ConnectionHandler({"default": database})["default"]
    django.db.connections["default"] = wrapper
    with pytest.MonkeyPatch.context() as patch:
        # Django refuses to work where an event loop runs, and the tests of a store look at it from one.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        try:
            yield wrapper
        finally:
            wrapper.close()
            del django.db.connections["default"]


@contextmanager
def django_proxy(url: str) -> Iterator[Any]:
    with django_database(url), transaction.atomic():
        yield django.db.connection


@contextmanager
def django_wrapper(url: str) -> Iterator[Any]:
    with django_database(url) as wrapper, transaction.atomic():
        yield wrapper


EVERY_KIND = [
    blocking_connection,
    without_autocommit,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_scoped_session,
    django_proxy,
    django_wrapper,
]


class DjangoHarness(DriverHarness):
    """Synchronous callers use Django."""

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        with django_proxy(self.url) as own:
            yield Blocking(own)


class BlockingSqlalchemyHarness(DriverHarness):
    """Synchronous callers use a session of SQLAlchemy."""

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        with sqlalchemy_session(self.url) as session:
            yield Blocking(session)
