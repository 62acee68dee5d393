"""What an error says, without what it quotes of the message it is about.

Dead letters, log lines and spans are read by more people than messages are. Some libraries put the refused value into
the text of their error: those errors are recognised by their shape, so that no such library need be installed.
"""

from __future__ import annotations

import re
from typing import Any, Final

from nightmail.errors import NightmailError
from nightmail.outcome import REASON_LIMIT, Outcome, Retry

LINE_LIMIT: Final = 500
_MANY: Final = 10
_ROW = re.compile(r"(?:\n|\\n)[ \t]*(?:DETAIL|\[SQL|\[parameters):?.*", re.DOTALL)
"""From here on a database's error quotes the row or the statement.

Blanks only, no `\\s`: with that, a text of many empty lines would be read again from each of them.
"""
_QUOTING: Final = frozenset({"union_tag_invalid"})
"""Types of pydantic errors whose message quotes the input."""


def describe(error: BaseException) -> str:
    """The error as `repr` shows it, without any input that its library quotes."""
    kind = type(error)
    library = kind.__module__.partition(".")[0]
    inner = getattr(error, "original_error", None)
    if library == "fast_depends" and isinstance(inner, BaseException):
        return describe(inner)
    if library.startswith("pydantic") and hasattr(error, "errors"):
        return f"{kind.__name__}: {_refused(error)}"
    if isinstance(error, BaseExceptionGroup):
        each = "; ".join(describe(one) for one in error.exceptions[:_MANY])
        return f"{kind.__name__}: {error.message}: {each}"
    if library == "sqlalchemy" and isinstance(inner := getattr(error, "orig", None), BaseException):
        return f"{kind.__name__}: {_without_row(str(inner))}"
    if isinstance(error, UnicodeError):
        # Its `repr` contains the whole input.
        return f"{kind.__name__}: {error}"
    return _without_row(repr(error))


def in_words(error: BaseException) -> str:
    """The error in one line; one of ours that only wraps another is described by its cause."""
    if not isinstance(error, NightmailError):
        return one_line(describe(error))
    says, cause = str(error), error.__cause__
    if cause is None:
        return one_line(says)
    if says == type(error).__doc__:
        return one_line(describe(cause))
    # The `str` of an OSError has the errno too.
    own_words = str(getattr(cause, "strerror", None) or cause)
    return one_line(says if own_words and own_words in says else f"{says}: {describe(cause)}")


def one_line(text: str, limit: int = LINE_LIMIT) -> str:
    """`text` in one line of a log: it can neither begin another line nor move the cursor."""
    if not text.isprintable():
        text = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
        )
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def last_error(outcome: Outcome) -> str | None:
    """What a store keeps of the error of a retry: one line of at most 255 characters, which every store can keep."""
    if not isinstance(outcome, Retry) or not outcome.error:
        return None
    # What is printable has neither a NUL nor a lone surrogate. An error may be long, and is cut in any case.
    return one_line(outcome.error[: REASON_LIMIT + 1], REASON_LIMIT)


def _refused(error: Any) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    said = [
        f"{'.'.join(map(str, each['loc'])) or 'input'}: "
        f"{each['type'] if each['type'] in _QUOTING else each['msg']}"
        for each in found[:_MANY]
    ]
    more = f" and {len(found) - _MANY} more" if len(found) > _MANY else ""
    return f"{error.title}: {'; '.join(said)}{more}"


def _without_row(text: str) -> str:
    return _ROW.sub("…", text)
