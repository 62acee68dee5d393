"""How a SQLAlchemy transaction begins and ends.

SQLAlchemy is never imported here: code that has a session has imported it already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

Tell: TypeAlias = Callable[[bool], None]
"""Called at the end of each transaction, with whether it was committed."""


class Ending:
    """Listeners for one session or connection, which this keeps alive."""

    def __init__(self, target: object, listeners: dict[str, Callable[..., None]]) -> None:
        self._target = target
        self._listeners = listeners
        for event, listener in listeners.items():
            _sqlalchemy().event.listen(target, event, listener)

    def close(self) -> None:
        """Stop listening."""
        for event, listener in self._listeners.items():
            _sqlalchemy().event.remove(self._target, event, listener)


def sync_session_of(transaction: object) -> object:
    """The synchronous session or connection behind an asynchronous or a scoped one; anything else as it is."""
    if type(transaction).__name__ in ("scoped_session", "async_scoped_session"):
        scoped: Any = transaction
        transaction = scoped()
    for name in ("sync_session", "sync_connection"):
        inner = getattr(transaction, name, None)
        if inner is not None and _is_of_sqlalchemy(inner):
            return inner
    return transaction


async def begun(transaction: object) -> None:
    """Begin it, as the first statement of a real store would: a transaction never begun fires no event at its end."""
    heart: Any = sync_session_of(transaction)
    if not _is_of_sqlalchemy(heart) or heart.in_transaction():
        return
    if isinstance(heart, _sqlalchemy().Connection) and heart is not transaction:
        outer: Any = transaction
        await outer.begin()
    else:
        heart.begin()


def ending_of(heart: object, tell: Tell) -> Ending | None:
    """Listen for the ends of its transactions; `None` if it is not SQLAlchemy's."""
    if not _is_of_sqlalchemy(heart):
        return None
    if isinstance(heart, _sqlalchemy().Connection):
        return Ending(
            heart, {"commit": lambda _connection: tell(True), "rollback": lambda _connection: tell(False)}
        )
    return _ending_of_session(heart, tell)


def _ending_of_session(session: object, tell: Tell) -> Ending:
    committed = False

    def after_commit(session: Any) -> None:
        nonlocal committed
        # The event also fires when a savepoint is released.
        committed = session.get_nested_transaction() is None

    def after_transaction_end(_session: Any, transaction: Any) -> None:
        nonlocal committed
        if transaction.parent is None:
            outcome, committed = committed, False
            tell(outcome)

    return Ending(session, {"after_commit": after_commit, "after_transaction_end": after_transaction_end})


def _is_of_sqlalchemy(something: object) -> bool:
    """Whether it is a session or a connection. By its real type: a mock may claim to be one."""
    return any(
        kind.__module__.startswith("sqlalchemy.") and kind.__name__ in ("Session", "Connection")
        for kind in type(something).__mro__
    )


def _sqlalchemy() -> Any:
    return sys.modules["sqlalchemy"]
