"""Messages in Postgres."""

from nightmail.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
