"""The session of a `def` handler: SQLAlchemy's synchronous one, which only ever runs on a thread.

What is said in `sessions` holds for it too. It differs in where things happen: everything that asks the database is
done on a thread of the handler's worker, and never on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from nightmail.broker.at_once import at_once
from nightmail.engine.current import current_slot
from nightmail.store import Blocking

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

T = TypeVar("T")

SyncSessionFactory: TypeAlias = "Callable[[], Session]"
"""What makes sessions: a `sessionmaker`, or anything that is called like one."""


@dataclass(frozen=True, slots=True)
class ThreadedSession(Blocking):
    """A synchronous session that is ended as an asynchronous one is."""

    async def commit(self) -> None:
        """Commit, on a thread."""
        await on_thread(self._sync.commit)

    async def rollback(self) -> None:
        """Undo, on a thread."""
        await on_thread(self._sync.rollback)

    async def close(self) -> None:
        """Give the connection back, on a thread."""
        await on_thread(self._sync.close)

    def close_here(self) -> None:
        """The same on this thread, which is the handler's."""
        self._sync.close()

    @property
    def _sync(self) -> Any:
        return self.session


async def carried_out(session: object, verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What a verb of the store gives in this session: on a thread, if the session is synchronous."""
    if isinstance(session, Blocking):
        return await on_thread(lambda: at_once(verb()))
    return await verb()


async def on_thread(function: Callable[[], T]) -> T:
    """What this function returns, on a thread of the worker that has the message; it is always waited for."""
    slot = current_slot()
    if slot is None or slot.threads is None:
        return await anyio.to_thread.run_sync(function)
    with anyio.CancelScope(shield=True):
        # A commit is not interrupted half-way: it is waited for.
        result = await slot.threads.run(slot, function, interrupt=_wait)
    return result  # noqa: RET504 - to mypy the scope looks as if it could swallow an error


def _wait() -> None:
    """Nothing to do."""
