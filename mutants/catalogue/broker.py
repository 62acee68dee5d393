"""The broker, and what it tells metrics and traces."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

_BROKER: Final = "tests/broker"

MUTANTS: Final = (
    Mutant(
        name="a decision that is not understood is an acknowledgement",
        why="a misspelt decision deletes the message",
        file="broker/decisions.py",
        text="    raise said  # A user's own subclass. What it means is unknown.",
        instead="    return Done()",
        killers=(
            f"{_BROKER}/test_ack_policies.py::"
            "test_what_is_not_understood_is_tried_again_wherever_it_is_raised[handling-Unheard()-one-memory]",
        ),
    ),
    Mutant(
        name="a refused acknowledgement is a rejection",
        why="a message is given up because its acknowledgement was refused",
        file="broker/acknowledging.py",
        text="    if error is not None and result.error is error:",
        instead="    if error is not None and result.error is not error and result.error is not None:",
        killers=(
            f"{_BROKER}/test_refused_acks.py::"
            "test_no_policy_takes_a_refused_acknowledgement_for_anything_but_a_failure[reject_on_error-memory]",
        ),
    ),
    Mutant(
        name="a refused acknowledgement is done",
        why="a message is deleted whose acknowledgement was refused",
        file="engine/result.py",
        text="            (self.acked_in_transaction or self.error is not None) and isinstance(decision, Done)",
        instead="            self.acked_in_transaction and isinstance(decision, Done)",
        killers=(
            f"{_BROKER}/test_refused_acks.py::test_a_handler_that_swallows_the_refusal_is_not_done[memory]",
        ),
    ),
    Mutant(
        name="a forgotten decision is done",
        why="under AckPolicy.MANUAL a handler that forgets to decide loses its message",
        file="broker/subscriber.py",
        text="            elif self.ack_policy is not AckPolicy.MANUAL:",
        instead="            else:",
        killers=(
            f"{_BROKER}/test_deliver.py::"
            "test_a_forgotten_decision_under_manual_is_a_retry_and_never_a_delete[memory]",
        ),
    ),
    Mutant(
        name="what was rejected leaves with a later transaction",
        why="a rejected message is deleted, and no dead letter tells of it",
        file="broker/received.py",
        text="        return self.items if self.result.may_be_done else ()",
        instead="        return self.items",
        killers=(
            f"{_BROKER}/test_refused_acks.py::test_what_was_rejected_does_not_leave_with_a_later_transaction",
        ),
    ),
    Mutant(
        name="what cannot be decoded is tried for ever",
        why="one broken message runs through all its retries",
        file="broker/parser.py",
        text="    if step is decode_body:\n        return _decode_marked",
        instead="    if step is decode_body:\n        return step",
        killers=(
            f"{_BROKER}/test_deliver.py::test_an_undecodable_body_is_a_dead_letter_and_not_a_crash_loop[memory]",
        ),
    ),
    Mutant(
        name="a session commits what its handler's error should undo",
        why="half of a failed handler's work stays",
        file="broker/sessions.py",
        text="            self.must_undo\n            or self._received.result.error is not None\n            or not any(",
        instead="            not any(",
        killers=(
            f"{_BROKER}/test_session_rollbacks.py::"
            "test_an_error_that_a_middleware_swallows_undoes_an_acknowledgement_in_the_session_all_the_same",
            f"{_BROKER}/test_outbox_session.py::test_what_is_acknowledged_and_then_fails_is_undone_and_tried_again[nack_on_error-sqlite]",
        ),
    ),
    Mutant(
        name="a session commits without its message",
        why="the effect is stored, and the message runs again",
        file="broker/sessions.py",
        text="            await carried_out(transaction, lambda: store.ack(done, transaction=transaction))\n",
        instead="            await carried_out(transaction, lambda: store.hold(done, transaction=transaction))\n",
        killers=(
            f"{_BROKER}/test_outbox_session.py::"
            "test_what_the_handler_wrote_commits_with_the_end_of_its_message[sqlite]",
        ),
    ),
    Mutant(
        name="a stored content type chooses the decoder",
        why="who can write a row chooses code that runs in the worker",
        file="broker/parser.py",
        text="    if content_type == JSON:\n",
        instead='    if content_type and "pickle" in content_type:\n'
        '        return __import__("pickle").loads(body)\n    if content_type == JSON:\n',
        killers=("tests/security/test_deserialisation.py::test_nothing_in_a_message_is_ever_unpickled",),
    ),
    Mutant(
        name="a span tells the error as it is",
        why="a payload stands in traces",
        file="broker/opentelemetry.py",
        text="one_line(self._describe(error) or type(error).__name__)",
        instead="str(error)",
        killers=(
            "tests/telemetry/test_spans.py::test_a_span_tells_of_an_error_what_a_dead_letter_would[memory]",
        ),
    ),
    Mutant(
        name="any reason is a label",
        why="a handler's text fills the metrics, and tells what it says",
        file="telemetry/metrics_observer.py",
        text="queue.reasons[outcome.reason if outcome.reason in queue.reasons else OTHER] += 1",
        instead="queue.reasons[outcome.reason] = queue.reasons.get(outcome.reason, 0) + 1",
        killers=(
            "tests/telemetry/test_metrics_of_a_broker.py::test_every_ending_is_counted[memory-prometheus]",
        ),
    ),
    Mutant(
        name="a stop waits until the connections are closed",
        why="a server that does not answer hangs a deployment until the process is killed",
        file="broker/broker.py",
        text="ends_by(time.monotonic() + CLOSE_SECONDS, closing)",
        instead="ends_by(time.monotonic() + 3600, closing)",
        killers=(
            "tests/unit/test_bounded_stop.py::"
            "test_a_broker_stops_within_its_grace_period_and_five_seconds_whatever_the_store_does",
        ),
    ),
    Mutant(
        name="options of a store that is made already are ignored",
        why="messages go to other tables than the broker was given, or are larger than it allows",
        file="broker/broker.py",
        text="        if is_given:\n            raise SetupError(",
        instead="        if is_given is None:\n            raise SetupError(",
        killers=(
            f"{_BROKER}/test_misuse.py::"
            "test_an_option_of_the_store_is_refused_beside_a_store_that_is_made_already",
        ),
    ),
)
