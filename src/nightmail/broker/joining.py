"""What may be given as a session, as far as that can be checked without the store.

A test broker takes whatever the code under test calls its transaction, so a mistake that every store refuses must be
refused before.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from nightmail.errors import CannotJoin

_FACTORIES: Final = frozenset({"Engine", "AsyncEngine", "sessionmaker", "async_sessionmaker"})


def check_session(session: object | None, *, blocking: bool = False) -> None:
    """Refuse a transaction factory given in place of a transaction. In synchronous code it must be a `blocking` one."""
    if session is None:
        return
    name = _factory(session)
    if name is None:
        return
    other = "" if blocking is not _is_async(name) else f"and {_kind(blocking)} one, "
    begun = "with" if blocking else "async with"
    raise CannotJoin(
        f"session is the {name} itself, which makes transactions and is none: pass a session that is in one, "
        f"{other}as in `{begun} sessions.begin() as session`"
    )


def check_session_factory(factory: Any, *, blocking: bool = False) -> None:
    """Refuse what is no session factory, or one of the other kind."""
    if factory is None:
        return
    name = _factory(factory)
    if callable(factory) and (name is None or blocking is not _is_async(name)):
        return
    option, maker = (
        ("sync_session_factory", "sessionmaker") if blocking else ("session_factory", "async_sessionmaker")
    )
    raise TypeError(
        f"{option} must make {'synchronous' if blocking else 'asynchronous'} sessions, and a "
        f"{type(factory).__name__} does not: pass {maker}(engine)"
    )


def _is_async(name: str) -> bool:
    return name.lower().startswith("async")


def _kind(blocking: bool) -> str:
    return "a synchronous" if blocking else "an asynchronous"


def _factory(session: object) -> str | None:
    return _factory_among(type(session).__mro__)


@lru_cache(maxsize=64)
def _factory_among(kinds: tuple[type, ...]) -> str | None:
    for kind in kinds:
        if kind.__name__ in _FACTORIES and kind.__module__.startswith("sqlalchemy."):
            return kind.__name__
    return None
