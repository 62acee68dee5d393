"""Notes how a handler ended: what it called, raised or returned, and what its acknowledgement policy makes of that.

FastStream has a middleware for this. It is left out: here a decision is only noted, and written by the worker at the
end, and for that the middleware would take a tenth of what a message costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from faststream.exceptions import HandlerException
from faststream.middlewares import AckPolicy

from nightmail.broker.decisions import ANSWERS, AckIn, are_outcomes, decision_in, senseless
from nightmail.broker.joining import check_session
from nightmail.broker.received import Received, ReceivedBatch, ack_in
from nightmail.broker.sync_sessions import carried_out
from nightmail.describing import describe
from nightmail.engine.result import Decision, Nacked
from nightmail.errors import LeaseLost, NoDecision, Undecodable
from nightmail.outcome import OUTCOMES, Dead, Done, Reason, Retry
from nightmail.store import Blocking

DONE: Final = Done()
_ON_FAILURE: Final[dict[AckPolicy, Decision]] = {
    AckPolicy.NACK_ON_ERROR: Nacked(),
    AckPolicy.REJECT_ON_ERROR: Dead(Reason.REJECTED),
    AckPolicy.ACK: DONE,
}


async def conclude(
    received: Received | ReceivedBatch,
    answer: Any,
    policy: AckPolicy,
    described: Callable[[Exception], str | None],
) -> None:
    """Note what a handler answered, whether it raised or returned it."""
    result = received.result
    if isinstance(answer, HandlerException):
        result.error = await _obey(received, answer) or result.error
    elif isinstance(answer, Undecodable):
        result.decide(Dead(Reason.UNDECODABLE, described(answer), ran=False))
    elif isinstance(answer, Exception):
        fail(received, answer, policy)
    elif isinstance(answer, OUTCOMES):
        result.decide(answer)
    elif isinstance(received, ReceivedBatch) and are_outcomes(answer):
        await _conclude_each(received, answer, policy, described)
    elif (wrong := senseless(answer)) is not None:
        result.error = NoDecision(f"{wrong}. The message is retried")
    elif policy is not AckPolicy.MANUAL:
        result.decide(DONE)  # It returned only what it wants published.


def fail(received: Received | ReceivedBatch, error: Exception | None, policy: AckPolicy) -> None:
    """It raised something that is no decision: the policy's counts, unless there is one."""
    result = received.result
    if error is not None and result.error is error:
        return  # No policy may treat a refused acknowledgement as done.
    if (decision := _ON_FAILURE.get(policy)) is not None:
        result.decide(decision)
    result.error = error or result.error


async def _obey(received: Received | ReceivedBatch, said: HandlerException) -> Exception | None:
    """Note the decision that it raised or returned; what is wrong with it, if anything is."""
    try:
        decision = decision_in(said)
        if isinstance(decision, AckIn):
            session = decision.session
            if isinstance(session, Blocking):
                check_session(session.session, blocking=True)
            else:
                check_session(session)
            await carried_out(session, lambda: ack_in(received, session))
        else:
            received.result.decide(decision)
    except LeaseLost as lost:
        return lost
    except Exception as error:  # noqa: BLE001 - a decision that cannot be carried out is none
        why = "" if error is said else f" ({describe(error)})"
        failure = NoDecision(f"{type(said).__name__} cannot be obeyed{why}: the message is retried")
        failure.__cause__ = error
        return failure
    return None


async def _conclude_each(
    batch: ReceivedBatch,
    answers: Sequence[Any],
    policy: AckPolicy,
    described: Callable[[Exception], str | None],
) -> None:
    """It returned one answer for each of those it got; `None` is for what returning nothing means."""
    if isinstance(batch.result.decision, Nacked | Retry):
        return
    handed = [item for item in batch.items if item.was_handed_over]
    if len(answers) != len(handed) or not all(each is None or isinstance(each, ANSWERS) for each in answers):
        batch.result.void(
            TypeError(f"a batch of {len(handed)} needs an outcome for each, got {len(answers)} answers")
        )
        return
    for item, answer in zip(handed, answers, strict=True):
        if answer is not None:
            # An exception is for the retry policy: the others of the batch went well.
            await conclude(item, answer, AckPolicy.NACK_ON_ERROR, described)
    if policy is not AckPolicy.MANUAL:
        batch.result.decide(DONE)
