"""What synchronous code may have its transaction on Postgres in. Django is configured once, for the whole process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import django.db
import psycopg
from django.apps import apps
from django.conf import settings
from django.db import transaction
from django.db.utils import ConnectionHandler
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from nightmail.store import Blocking
from tests.stores.postgres.support import AsyncpgHarness, psycopg_url


@contextmanager
def psycopg_connection(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as own:
        yield own


@contextmanager
def psycopg_block(url: str) -> Iterator[Any]:
    with psycopg.connect(url, autocommit=True) as own, own.transaction():
        yield own


@contextmanager
def sqlalchemy_connection(url: str) -> Iterator[Any]:
    engine = create_engine(psycopg_url(url), poolclass=NullPool)
    with engine.begin() as own:
        yield own


@contextmanager
def sqlalchemy_session(url: str) -> Iterator[Any]:
    engine = create_engine(psycopg_url(url), poolclass=NullPool)
    with Session(engine) as session, session.begin():
        yield session


@contextmanager
def sqlalchemy_scoped_session(url: str) -> Iterator[Any]:
    registry = scoped_session(sessionmaker(create_engine(psycopg_url(url), poolclass=NullPool)))
    try:
        with registry.begin():
            yield registry
    finally:
        registry.remove()


@contextmanager
def django_database(url: str, **options: Any) -> Iterator[Any]:
    """Django's default connection of this thread, to this database."""
    if not settings.configured:
        settings.configure(USE_TZ=True, LOGGING_CONFIG=None)
    if not apps.ready:
        django.setup()
    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": parts.hostname,
        "PORT": str(parts.port),
        "USER": parts.username,
        "PASSWORD": parts.password,
        "NAME": parts.path.removeprefix("/"),
        "OPTIONS": options,
    }
    wrapper = ConnectionHandler({"default": database})["default"]
    django.db.connections["default"] = wrapper
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
    with django_database(url, server_side_binding=True) as wrapper, transaction.atomic():
        yield wrapper


EVERY_KIND = [
    psycopg_connection,
    psycopg_block,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_scoped_session,
    django_proxy,
    django_wrapper,
]


class DjangoHarness(AsyncpgHarness):
    """Synchronous callers use Django."""

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        with django_proxy(self.url) as own:
            yield Blocking(own)
