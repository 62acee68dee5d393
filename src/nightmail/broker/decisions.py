"""What a handler may say about its message, in one set of words: called, raised and returned mean the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from faststream.exceptions import AckMessage, HandlerException, NackMessage, RejectMessage

from nightmail.broker.delays import as_delay
from nightmail.broker.exceptions import PauseQueue, PostponeMessage
from nightmail.durations import Duration
from nightmail.engine.result import Decision, Nacked, PausesQueue
from nightmail.outcome import OUTCOMES, Dead, Done, Postpone, Reason

ANSWERS: Final = (*OUTCOMES, Exception)
"""What a handler may return to say how it ended."""


@dataclass(frozen=True, slots=True)
class AckIn:
    """Handled: it leaves the store as part of this session's transaction."""

    session: object


def ack(session: object | None = None) -> Done | AckIn:
    """Handled."""
    return Done() if session is None else AckIn(session)


def nack(delay: Duration | None = None) -> Nacked:
    """Failed: try again after `delay`, or when the retry policy says."""
    return Nacked(None if delay is None else as_delay(delay))


def reject(reason: str | None = None) -> Dead:
    """Given up."""
    return Dead(reason or Reason.REJECTED)


def postpone(delay: Duration) -> Postpone:
    """Not yet: look again after `delay`."""
    return Postpone(as_delay(delay))


def decision_in(said: HandlerException) -> Decision | AckIn:
    """What this exception says, raised or returned; raises if that is unknown."""
    match said:
        case PostponeMessage():
            return postpone(said.delay)
        case PauseQueue():
            return PausesQueue(said.retry_after, said.reason)
        case AckMessage():
            return ack(**said.extra_options)
        case NackMessage():
            return nack(**said.extra_options)
        case RejectMessage():
            return reject(**said.extra_options)
    raise said  # A user's own subclass. What it means is unknown.


def is_answer(returned: Any) -> bool:
    """Whether a handler returned an outcome, or one for each of a batch: nothing to publish."""
    return _is_outcome(returned) or are_outcomes(returned)


def senseless(returned: Any) -> str | None:
    """What is wrong with an invalid answer for one message; `None` if it is valid, or not an answer."""
    if isinstance(returned, type) and issubclass(returned, ANSWERS):
        return f"the handler returned the class {returned.__name__}, and must return one: {returned.__name__}(...)"
    if are_outcomes(returned):
        return "the handler returned a list of outcomes for one message: return one, or subscribe with batch=True"
    return None


def are_outcomes(returned: Any) -> bool:
    """Whether a handler returned a list of outcomes, one for each of a batch."""
    return isinstance(returned, list | tuple) and any(_is_outcome(each) for each in returned)


def _is_outcome(returned: Any) -> bool:
    """True for an outcome class too: only the parentheses were forgotten."""
    return isinstance(returned, ANSWERS) or (isinstance(returned, type) and issubclass(returned, ANSWERS))
