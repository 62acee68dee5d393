"""The kinds of transactions that callers have whatever their database is: SQLAlchemy's and Django's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import django.db
import pytest
from django.apps import apps
from django.conf import settings
from django.db import transaction
from django.db.utils import ConnectionHandler
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from tests.stores.shared.backend import Begin, BeginBlocking

WithDriver = Callable[[str], str]
"""From our URL to SQLAlchemy's."""


def of_sqlalchemy(with_driver: WithDriver, **options: Any) -> dict[str, Begin]:
    """The asynchronous ones, with an engine of these options."""

    @asynccontextmanager
    async def connection(url: str) -> AsyncIterator[Any]:
        async with create_async_engine(with_driver(url), poolclass=NullPool, **options).begin() as own:
            yield own

    @asynccontextmanager
    async def session(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(with_driver(url), poolclass=NullPool, **options)
        async with AsyncSession(engine) as own, own.begin():
            yield own

    return {"AsyncConnection": connection, "AsyncSession": session}


def of_synchronous_sqlalchemy(with_driver: WithDriver, **options: Any) -> dict[str, BeginBlocking]:
    @contextmanager
    def connection(url: str) -> Iterator[Any]:
        with create_engine(with_driver(url), poolclass=NullPool, **options).begin() as own:
            yield own

    @contextmanager
    def session(url: str) -> Iterator[Any]:
        with Session(create_engine(with_driver(url), poolclass=NullPool, **options)) as own, own.begin():
            yield own

    @contextmanager
    def scoped(url: str) -> Iterator[Any]:
        registry = scoped_session(
            sessionmaker(create_engine(with_driver(url), poolclass=NullPool, **options))
        )
        try:
            with registry.begin():
                yield registry
        finally:
            registry.remove()

    return {"Connection": connection, "Session": session, "scoped_session": scoped}


@contextmanager
def django_database(engine: str, url: str, **options: Any) -> Iterator[Any]:
    """Django's default connection of this thread, to this database."""
    # Once for the whole process.
    if not settings.configured:
        settings.configure(USE_TZ=True, LOGGING_CONFIG=None)
    if not apps.ready:
        django.setup()
    parts = urlsplit(url)
    database = {
        "ENGINE": f"django.db.backends.{engine}",
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "NAME": parts.path.removeprefix("/"),
        "OPTIONS": options,
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


def of_django(engine: str, wrapper_options: Mapping[str, Any] | None = None) -> dict[str, BeginBlocking]:
    """By each name of the connection."""

    @contextmanager
    def proxy(url: str) -> Iterator[Any]:
        with django_database(engine, url), transaction.atomic():
            yield django.db.connection

    @contextmanager
    def wrapper(url: str) -> Iterator[Any]:
        with django_database(engine, url, **(wrapper_options or {})) as own, transaction.atomic():
            yield own

    return {"django.db.connection": proxy, "django.db.connections": wrapper}
