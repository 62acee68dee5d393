"""Whether a handler closed its session, and with that undid what it had written.

SQLAlchemy is never imported here: code that has a session has imported it already.
"""

from __future__ import annotations

import sys
from typing import Any


class Closings:
    """Listens to one SQLAlchemy session, asynchronous or not; ignores anything else."""

    def __init__(self, session: object) -> None:
        self._ended_by_name = False
        self.undid_writes = False
        """Whether a transaction ended with neither a commit nor a rollback."""
        inner: Any = getattr(session, "sync_session", session)
        if any(kind.__module__ == "sqlalchemy.orm.session" for kind in type(inner).__mro__):
            listen = sys.modules["sqlalchemy"].event.listen
            listen(inner, "after_commit", self._named)
            listen(inner, "after_rollback", self._named)
            listen(inner, "after_transaction_end", self._ended)

    def _named(self, _session: Any) -> None:
        self._ended_by_name = True

    def _ended(self, _session: Any, transaction: Any) -> None:
        if transaction.parent is None:
            self.undid_writes = self.undid_writes or not self._ended_by_name
        # Also at the end of a savepoint, which SQLAlchemy reports as a commit too.
        self._ended_by_name = False
