"""The ledger of `callers`, for synchronous code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from nightmail.stores.sqlite import begin_immediate

_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
_DJANGO = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}


class SyncLedger:
    """Effects of handlers, one row each."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sessions = sessionmaker(engine)

    def write(self, session: Session, effect: str) -> None:
        """Have an effect, in this transaction."""
        session.execute(text("insert into effects values (:effect)"), {"effect": effect})

    def effects(self) -> list[str]:
        """What was committed."""
        with self.engine.connect() as connection:
            return sorted(connection.execute(text("select effect from effects")).scalars())

    def create(self) -> None:
        """Make the table."""
        with self.engine.begin() as connection:
            connection.execute(text("create table effects (effect varchar(50))"))


@contextmanager
def sync_ledger_at(url: str) -> Iterator[SyncLedger]:
    """The ledger in this database, on an engine of its own."""
    scheme, rest = url.split("://", 1)
    engine = create_engine(f"{_DRIVERS[scheme]}://{rest}")
    if scheme == "sqlite":
        begin_immediate(engine)
    try:
        yield SyncLedger(engine)
    finally:
        engine.dispose()


def django_settings(url: str) -> dict[str, Any]:
    """The same database for Django."""
    parts = urlsplit(url)
    settings: dict[str, Any] = {"ENGINE": f"django.db.backends.{_DJANGO[parts.scheme]}"}
    if parts.scheme == "sqlite":
        return settings | {"NAME": parts.path[1:], "OPTIONS": {"transaction_mode": "IMMEDIATE"}}
    return settings | {
        "HOST": parts.hostname,
        "PORT": str(parts.port),
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "NAME": parts.path[1:],
    }
