"""Who did what: one line for each change that a command made, written once it was made.

The lines are INFO of the logger `nightmail.audit`. An application that is given with `--app` and has configured
`logging` gets them there; `NIGHTMAIL_AUDIT_LOG` names a file that gets them whatever is configured. Without either
nothing is noted.

Neither content nor a timer id nor an ordering key is ever in them, as in all our logs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from nightmail.cli.exit_codes import INCOMPLETE, Refusal
from nightmail.cli.operator import named
from nightmail.cli.progress import Counter
from nightmail.cli.texts import safe
from nightmail.json_log import JSONFormatter

if TYPE_CHECKING:
    from nightmail.cli.running import Session

VARIABLE: Final = "NIGHTMAIL_AUDIT_LOG"
NAME: Final = "nightmail.audit"
_LOG: Final = logging.getLogger(NAME)
_FIELDS: Final = ("action", "store", "to", "ids", "count")
"""What a line has besides those fields that all our lines can have; `by` and `queue` are among them."""


def changed(
    session: Session,
    action: str,
    *,
    by: str | None = None,
    queue: str | None = None,
    to: str | None = None,
    ids: Sequence[int] | None = None,
    count: int | None = None,
) -> None:
    """Note what was just done. Without a queue and ids it was done to all queues, or to the tables."""
    about = {
        "store": session.chosen.where,
        "queue": queue,
        "to": to,
        "ids": ",".join(map(str, ids or ())),
        "count": count,
    }
    known = {name: value for name, value in about.items() if value not in (None, "")}
    who = named(by)
    said = ", ".join(f"{name} {safe(value)}" for name, value in known.items())
    _LOG.info("%s by %s: %s", action, safe(who), said, extra={"action": action, "by": who, **known})


@contextmanager
def counted(
    session: Session,
    action: str,
    counter: Counter,
    *,
    queue: str | None = None,
    to: str | None = None,
    ids: Sequence[int] | None = None,
) -> Iterator[None]:
    """Note what this does in steps: also what it has done when it is interrupted, or the store fails."""
    try:
        yield
    finally:
        if counter.done:
            changed(session, action, queue=queue, to=to, ids=ids, count=counter.done)


@contextmanager
def kept() -> Iterator[None]:
    """Write the lines into the file that the variable names, if it names one; refuse if that cannot be."""
    path = os.environ.get(VARIABLE)
    if not path:
        yield
        return
    file, level = _File(path), _LOG.level
    _LOG.addHandler(file)
    _LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOG.setLevel(level)
        _LOG.removeHandler(file)
        file.close()


def is_other(record: logging.LogRecord) -> bool:
    """Whether this is no line of ours: a filter for a log that shows what goes wrong."""
    return record.name != NAME


class _File(logging.Handler):
    """Adds each line to a file in one write, so that those of several commands do not mix.

    logging's own handlers drop a line that they cannot write, and go on.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self.setFormatter(JSONFormatter(fields=_FIELDS))
        try:
            # Only ever added to, also when others write to it. A new one can be read by its owner alone.
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise Refusal(
                f"the audit log {safe(path)} ({VARIABLE}) cannot be written: {error.strerror}; nothing was changed"
            ) from error

    def emit(self, record: logging.LogRecord) -> None:
        """See `Handler`."""
        line = f"{self.format(record)}\n".encode()
        try:
            why = None if os.write(self._file, line) == len(line) else "the line is cut short"
        except OSError as error:
            why = error.strerror
        if why is not None:
            raise Refusal(
                f"it was done, but is not in the audit log {safe(self._path)}: {why}. {record.getMessage()}",
                INCOMPLETE,
            )

    def close(self) -> None:
        """See `Handler`."""
        os.close(self._file)
        super().close()
