"""Where a scenario runs: a fresh store of each kind, durable, so that a commit has its real cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final

from benchmarks.places.mariadb import mariadb
from benchmarks.places.place import Bounds, Place
from benchmarks.places.postgres import postgres
from benchmarks.places.redis import redis
from benchmarks.places.sqlite import sqlite

__all__ = ["PLACES", "Bounds", "Place", "places"]

PLACES: Final[dict[str, Callable[[], AbstractContextManager[Place]]]] = {
    "sqlite": sqlite,
    "postgres": postgres,
    "mariadb": mariadb,
    "redis": redis,
}


@contextmanager
def places(*names: str) -> Iterator[list[Place]]:
    """A place of each kind, and their servers, for as long as the block lasts."""
    with ExitStack() as stack:
        yield [stack.enter_context(PLACES[name]()) for name in names]
