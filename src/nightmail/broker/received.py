"""Deliveries on their way through FastStream, one at a time or several together, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias

from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SkipMessage

from nightmail.broker.delays import as_delay
from nightmail.broker.exceptions import PostponeMessage
from nightmail.message import Delivery
from nightmail.outcome import OUTCOMES, Dead, Done, Outcome, Postpone, Reason, Retry
from nightmail.store import FullStore


@dataclass(frozen=True, slots=True)
class Nacked:
    """Failed: the retry policy decides what follows; the handler may have given the delay of a retry."""

    delay: timedelta | None = None

    def outcome(self, decided: Outcome) -> Outcome:
        """The policy's outcome, with that delay."""
        if isinstance(decided, Retry) and self.delay is not None:
            return replace(decided, after=self.delay)
        return decided


@dataclass(frozen=True, slots=True)
class Promised:
    """Acknowledged in the handler's own transaction. Whether that commits is not known here."""


Verdict: TypeAlias = Outcome | Nacked | Promised
ANSWERS: Final = (*OUTCOMES, Exception)
"""What a handler may return to say how it ended."""


@dataclass(slots=True, eq=False, repr=False)
class Received:
    """A delivery in its handler, with the first verdict given on it."""

    delivery: Delivery
    store: FullStore
    verdict: Verdict | None = None
    write: Callable[[Verdict, bool], Awaitable[None]] | None = None
    """Writes a verdict when it is given, where no worker will write it afterwards."""
    failure: Exception | None = None
    """The error of this one alone: its own within a batch, or an acknowledgement that was refused."""

    def __repr__(self) -> str:
        # Short, and without the message's content: FastStream's errors quote it.
        return f"message {self.delivery.id} of {self.delivery.queue}"

    def judge(self, verdict: Verdict) -> None:
        """Keep this verdict unless there is one already: the first wins.

        `Promised` is not final: a failure after it takes it back.
        """
        if self.verdict is None or (isinstance(self.verdict, Promised) and not isinstance(verdict, Done)):
            self.verdict = verdict

    @property
    def items(self) -> Sequence[Received]:
        """Itself: the one that is being handled."""
        return (self,)

    @property
    def may_be_done(self) -> bool:
        return self.verdict is None or isinstance(self.verdict, Done | Promised)

    def settle(self) -> None:
        """Nothing to distribute: its verdict is its own."""

    def take_back(self) -> None:
        """Its handler's writes are undone, so it is not done either."""
        if isinstance(self.verdict, Done | Promised):
            self.verdict = Nacked()

    def fail(self, error: Exception) -> None:
        """Its handler's verdict, whatever it was, could not be written: it is void, and the message has failed."""
        self.failure, self.verdict = error, Nacked()


@contextmanager
def refusing(items: Sequence[Received]) -> Iterator[None]:
    """Note on these that their acknowledgement was refused, if it is; if not, an earlier refusal is forgotten."""
    try:
        yield
    except Exception as error:
        for item in items:
            item.failure = error
        raise
    for item in items:
        item.failure = None


@dataclass(slots=True, eq=False, repr=False)
class ReceivedBatch:
    """Deliveries that one handler gets together. Each may get its own verdict; the batch's counts for the rest."""

    items: Sequence[Received]
    store: FullStore
    verdict: Verdict | None = None
    returned: Any = None
    """What the handler returned: one outcome for each, if it is that."""

    def __repr__(self) -> str:
        return f"messages {', '.join(str(item.delivery.id) for item in self.items)}"

    def judge(self, verdict: Verdict) -> None:
        """Keep this verdict for all that get none of their own. The first wins, but `Promised` can be taken back."""
        if self.verdict is None or (isinstance(self.verdict, Promised) and not isinstance(verdict, Done)):
            self.verdict = verdict

    def take_back(self) -> None:
        """Its handler's writes are undone, so nothing of it is done."""
        if isinstance(self.verdict, Done | Promised):
            self.verdict = Nacked()
        for item in self.items:
            item.take_back()

    def fail(self, error: Exception) -> None:
        """Its handler's verdicts could not be written: all have failed."""
        self.verdict = Nacked()
        for item in self.items:
            if not (isinstance(item.verdict, Dead) and not item.verdict.ran):
                item.fail(error)

    @property
    def open(self) -> list[Received]:
        """Those without a verdict of their own."""
        return [item for item in self.items if item.verdict is None]

    def settle(self) -> None:
        """Apply the batch's verdict to the rest, now that the handler has ended. Raises if its answer is invalid."""
        returned, self.returned = self.returned, None
        if not isinstance(self.verdict, Nacked | Retry) and _are_outcomes(returned):
            handed = [item for item in self.items if not _was_left_out(item)]
            if len(returned) != len(handed) or not all(
                each is None or isinstance(each, ANSWERS) for each in returned
            ):
                self.verdict = Nacked()
                raise TypeError(
                    f"a batch of {len(handed)} needs an outcome for each, got {len(returned)} answers"
                )
            for item, answer in zip(handed, returned, strict=True):
                if isinstance(answer, Exception) and (verdict := verdict_in(answer)) is not None:
                    item.judge(verdict)
                elif isinstance(answer, Exception):
                    item.failure = item.failure or answer
                    item.judge(Nacked())
                elif answer is not None:
                    item.judge(answer)
        if self.verdict is not None:
            for item in self.items:
                item.judge(self.verdict)


def verdict_in(error: Exception | None) -> Verdict | None:
    """The verdict that a handler raised or returned, if it is one."""
    match error:
        case AckMessage(extra_options=given) if not given:
            return Done()
        case PostponeMessage():
            return Postpone(error.delay)
        case NackMessage(extra_options={"delay": delay, **others}) if not others:
            return Nacked(as_delay(delay))
        case NackMessage(extra_options=given) if not given:
            return Nacked()
        case RejectMessage(extra_options={"reason": reason, **others}) if not others:
            return Dead(reason or Reason.REJECTED)
        case RejectMessage(extra_options=given) if not given:
            return Dead(Reason.REJECTED)
    # Unknown options are a mistake, and a mistake is retried.
    return None


def _was_left_out(item: Received) -> bool:
    """Whether it was never handed to the handler: it could not be decoded, or its decoder wants it skipped."""
    return (isinstance(item.verdict, Dead) and not item.verdict.ran) or isinstance(item.failure, SkipMessage)


def is_answer(returned: Any) -> bool:
    """Whether a handler returned an outcome, or one for each of a batch: nothing to publish."""
    return _is_outcome(returned) or _are_outcomes(returned)


def senseless(returned: Any) -> str | None:
    """What is wrong with an invalid answer for one message; `None` if it is valid, or not an answer."""
    if isinstance(returned, type) and issubclass(returned, ANSWERS):
        return f"the handler returned the class {returned.__name__}, and must return one: {returned.__name__}(...)"
    if _are_outcomes(returned):
        return "the handler returned a list of outcomes for one message: return one, or subscribe with batch=True"
    return None


def _are_outcomes(returned: Any) -> bool:
    return isinstance(returned, list | tuple) and any(_is_outcome(each) for each in returned)


def _is_outcome(returned: Any) -> bool:
    """True for an outcome class too: only the parentheses were forgotten."""
    return isinstance(returned, ANSWERS) or (isinstance(returned, type) and issubclass(returned, ANSWERS))
