"""What may be given as a session, as far as it can be told without asking the store.

A test broker takes whatever the code under test calls its transaction, so a mistake that every store refuses must be
refused before.
"""

from __future__ import annotations

from typing import Any, Final

from nightmail.errors import CannotJoin

_FACTORIES: Final = frozenset({"Engine", "AsyncEngine", "sessionmaker", "async_sessionmaker"})


def check_session(session: object | None) -> None:
    """Refuse what makes transactions and is none."""
    if session is None:
        return
    name = _factory(session)
    if name is None:
        return
    made = (
        f"session is the {name} itself, which makes transactions and is none: pass a session that is in one, "
    )
    if name.lower().startswith("async"):
        raise CannotJoin(f"{made}as in `async with sessions.begin() as session`")
    raise CannotJoin(f"{made}and an asynchronous one, as in `async with sessions.begin() as session`")


def check_session_factory(factory: Any) -> None:
    """Refuse what makes no sessions."""
    if factory is not None and not callable(factory):
        raise TypeError(
            f"session_factory must make sessions, and a {type(factory).__name__} does not: "
            "pass async_sessionmaker(engine)"
        )


def _factory(session: object) -> str | None:
    for kind in type(session).__mro__:
        if kind.__name__ in _FACTORIES and kind.__module__.startswith("sqlalchemy."):
            return kind.__name__
    return None
