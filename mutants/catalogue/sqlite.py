"""The SQLite store."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

_SUITE: Final = "tests/stores/sqlite/test_conformance.py::TestSQLite::"
_UNCERTAIN: Final = "tests/stores/sqlite/test_thread_failures.py::TestUncertainty::"

MUTANTS: Final = (
    Mutant(
        name="sqlite: a probe that did not run cuts a newer pause short",
        why="a provider that is down is asked again before its pause is over",
        file="stores/sqlite/controls.sql",
        text="automatic AND until > :now AND until - length <= :claimed_at;",
        instead="automatic AND until > :now;",
        killers=(f"{_SUITE}test_a_pause_that_was_set_since_a_probe_is_not_cut_short_by_it",),
    ),
    Mutant(
        name="sqlite: done is not fenced",
        why="a late worker deletes what another has taken over",
        file="stores/sqlite/settle.sql",
        text="WHERE m.id = lease.value AND hex(m.token) = claim.key;",
        instead="WHERE m.id = lease.value AND m.token IS NOT NULL;",
        killers=(f"{_SUITE}test_a_late_worker_cannot_settle_what_another_has_taken_over",),
    ),
    Mutant(
        name="sqlite: other outcomes are not fenced",
        why="a late worker retries or buries what another has taken over",
        file="stores/sqlite/settle.sql",
        text="WHERE m.id = json_extract(lease.value, '$[0]') AND hex(m.token) = json_extract(lease.value, '$[1]');\n\n-- name: still_wanted",
        instead="WHERE m.id = json_extract(lease.value, '$[0]') AND m.token IS NOT NULL;\n\n-- name: still_wanted",
        killers=(f"{_SUITE}test_a_late_and_a_good_lease_on_one_message_in_one_batch_are_told_apart",),
    ),
    Mutant(
        name="sqlite: an ack in a transaction is not fenced",
        why="a handler that lost its message commits its work, and ends the message of its successor",
        file="stores/sqlite/settling.py",
        text="        yield from self.hold(deliveries)\n",
        instead="",
        killers=(f"{_SUITE}test_a_worker_that_lost_the_lease_cannot_ack_and_their_writes_roll_back",),
    ),
    Mutant(
        name="sqlite: a retry counts no attempt",
        why="a message that always fails is retried for ever",
        file="stores/sqlite/settle.sql",
        text="    attempts = min(attempts + 1, 2147483647),\n    deliveries = 0,",
        instead="    attempts = attempts,\n    deliveries = 0,",
        killers=(f"{_SUITE}test_every_retry_counts_one_attempt",),
    ),
    Mutant(
        name="sqlite: a hand-back counts as a lost worker",
        why="deployments send healthy messages to the dead letters",
        file="stores/sqlite/settle.sql",
        text="    deliveries = max(deliveries - 1, 0),",
        instead="    deliveries = deliveries,",
        killers=(f"{_SUITE}test_a_release_undoes_the_count_of_its_claim",),
    ),
    Mutant(
        name="sqlite: a renewal shortens a lease",
        why="a long lease that a handler asked for ends early",
        file="stores/sqlite/under_lease.sql",
        text=" AND lease_until < :until;",
        instead=" AND lease_until IS NOT NULL;",
        killers=(f"{_SUITE}test_extending_never_shortens_a_lease",),
    ),
    Mutant(
        name="sqlite: a message is claimed a moment early",
        why="a delayed message runs before its time",
        file="stores/sqlite/claiming.py",
        text="        at = Moment.after_lock_out(self._time.now(), locked_out, waited_lately, wanted.lease)",
        instead="        at = Moment.after_lock_out(\n"
        "            self._time.now() + 1, locked_out, waited_lately, wanted.lease\n        )",
        killers=(
            f"{_SUITE}test_a_message_is_claimed_at_the_microsecond_it_is_due_and_not_before",
            f"{_SUITE}test_a_delivery_tells_when_it_was_published_due_and_claimed",
        ),
    ),
    Mutant(
        name="sqlite: a message is claimed a moment late",
        why="a worker that wakes up when a message is due does not get it",
        file="stores/sqlite/claim.sql",
        text="m.priority = level.value AND m.due_at <= :now\n);",
        instead="m.priority = level.value AND m.due_at < :now\n);",
        killers=(f"{_SUITE}test_a_message_is_claimed_at_the_microsecond_it_is_due_and_not_before",),
    ),
    Mutant(
        name="sqlite: a key's line has no order",
        why="messages of one ordering key overtake each other",
        file="stores/sqlite/claim.sql",
        text="                        AND earlier.id < m.id",
        instead="                        AND earlier.id < 0",
        killers=(
            f"{_SUITE}test_among_what_is_due_the_lower_id_goes_first_whatever_the_due_times",
            f"{_SUITE}test_messages_of_one_key_go_one_at_a_time_in_the_order_of_publishing",
        ),
    ),
    Mutant(
        name="sqlite: a replacement leaves the old lease",
        why="a late worker ends the new message",
        file="stores/sqlite/publish.sql",
        text="    last_attempt_at = NULL,\n    token = NULL,\n    lease_until = NULL,\n    claimed_at = NULL,\n    stop_requested_by = NULL\nWHERE id = :id;",
        instead="    last_attempt_at = NULL\nWHERE id = :id;",
        killers=(
            f"{_SUITE}test_replace_and_latest_overwrite_an_expired_lease_in_place_and_its_holder_is_told",
        ),
    ),
    Mutant(
        name="sqlite: a dedup window is closed at once",
        why="what was to be published once is published twice",
        file="stores/sqlite/publish.sql",
        text="WHERE queue = :queue AND timer_id = :timer_id AND until > :now;",
        instead="WHERE queue = :queue AND timer_id = :timer_id AND until < :now;",
        killers=(f"{_SUITE}test_a_name_stays_taken_for_the_window_after_its_message_has_ended",),
    ),
    Mutant(
        name="sqlite: a running message is cancelled",
        why="a handler's message is deleted under it",
        file="stores/sqlite/timers.sql",
        text="WHERE queue = :queue AND timer_key = :timer_id AND (lease_until IS NULL OR lease_until <= :now)\n"
        "RETURNING ordering_key;\n\n-- name: close_window",
        instead="WHERE queue = :queue AND timer_key = :timer_id\nRETURNING ordering_key;\n\n-- name: close_window",
        killers=(f"{_SUITE}test_a_running_message_is_not_cancelled",),
    ),
    Mutant(
        name="sqlite: a commit does not wait for the disk",
        why="a power cut loses messages that were told to be stored",
        file="stores/sqlite/link.py",
        text="{'FULL' if lasting else 'NORMAL'}",
        instead="{'NORMAL'}",
        killers=(
            "tests/stores/sqlite/test_thread.py::TestWritingTogether::test_only_what_must_last_waits_for_the_disk",
        ),
    ),
    Mutant(
        name="sqlite: a transaction begins without the lock",
        why="writers fail with `database is locked` instead of waiting",
        file="stores/sqlite/link.py",
        text='            else:\n                connection.execute("BEGIN IMMEDIATE")',
        instead='            else:\n                connection.execute("BEGIN")',
        killers=(
            "tests/stores/sqlite/test_thread.py::TestTheLock::"
            "test_a_transaction_has_it_before_its_first_statement",
        ),
    ),
    Mutant(
        name="sqlite: the file is for everyone",
        why="every user of the machine can read the messages",
        file="stores/sqlite/connect.py",
        text="0o600)",
        instead="0o644)",
        killers=("tests/stores/sqlite/test_file.py::TestFile::test_only_its_owner_may_read_what_is_created",),
    ),
    Mutant(
        name="sqlite: a dead letter too large for its reader is offered",
        why="one dead letter ends every worker that reads it",
        file="stores/sqlite/letters.sql",
        text="length(body) > :max_body OR ",
        instead="",
        killers=(f"{_SUITE}test_a_letter_over_the_limit_of_the_reader_is_given_up_unread_and_kept",),
    ),
    Mutant(
        name="sqlite: a postponed message keeps its last error",
        why="`why` shows an error of an attempt that no longer counts",
        file="stores/sqlite/settle.sql",
        text="    last_error = NULL,\n",
        instead="",
        killers=(f"{_SUITE}test_a_postponed_message_forgets_its_last_error",),
    ),
    Mutant(
        name="sqlite: a renewal is not fenced",
        why="a late worker keeps a message that another has",
        file="stores/sqlite/settle.sql",
        text="WHERE m.id = json_extract(lease.value, '$[0]') AND hex(m.token) = json_extract(lease.value, '$[1]');\n\n-- name: retry",
        instead="WHERE m.id = json_extract(lease.value, '$[0]') AND m.token IS NOT NULL;\n\n-- name: retry",
        killers=(f"{_SUITE}test_a_late_worker_cannot_extend_the_lease_of_its_successor",),
    ),
    Mutant(
        name="sqlite: a publish that was perhaps stored counts as not stored",
        why="the caller publishes again, and the message is there twice",
        file="stores/sqlite/runtime.py",
        text="lost=PublishUncertain",
        instead="lost=StoreUnavailable",
        killers=(f"{_UNCERTAIN}test_a_publish_whose_commit_failed_late_is_uncertain_and_was_sent_once",),
    ),
    Mutant(
        name="sqlite: a publish that was perhaps stored is sent once more",
        why="the message is there twice",
        file="stores/sqlite/runtime.py",
        text="        return (await self.write(verb, lost=PublishUncertain)).result",
        instead="        try:\n            return (await self.write(verb, lost=PublishUncertain)).result\n"
        "        except PublishUncertain:\n            return (await self.write(verb, lost=PublishUncertain)).result",
        killers=(f"{_UNCERTAIN}test_a_publish_whose_commit_failed_late_is_uncertain_and_was_sent_once",),
    ),
    Mutant(
        name="sqlite: a taken timer id is not looked for",
        why="a publish that is repeated with its timer id, because it was uncertain, fails though its message is there",
        file="stores/sqlite/publishing.py",
        text="taken = owner is not None or (",
        instead="taken = (",
        killers=(f"{_UNCERTAIN}test_an_uncertain_publish_is_safe_to_repeat_with_its_timer_id",),
    ),
    Mutant(
        name="sqlite: the index of claims has no due time",
        why="a claim reads everything that is due later, and gets slower as the queue grows",
        file="stores/sqlite/schema.sql",
        text="ON nightmail_messages (queue, follows, priority, due_at, id);",
        instead="ON nightmail_messages (queue, follows, priority, id);",
        killers=(
            "tests/plans/test_sqlite_plans.py::test_what_is_available_is_found_along_the_index_up_to_now",
            "tests/plans/test_sqlite_plans.py::test_a_claim_does_not_pay_for_messages_that_are_due_later",
        ),
    ),
    Mutant(
        name="sqlite: only the first transaction after a lock-out leaves leases alone",
        why="what ran out while others had the file is taken before its holder has a chance to renew it",
        file="stores/sqlite/link.py",
        text="        if self._lock_out >= lease / 2 and time.monotonic() - self._freed_at < A_CHANCE:\n",
        instead="        if not lease and self._lock_out >= lease / 2 and time.monotonic() - self._freed_at < A_CHANCE:\n",
        killers=(
            "tests/stores/sqlite/test_thread.py::TestUrgentWrites::"
            "test_a_lock_out_of_half_a_lease_concerns_the_transactions_right_after_it_too",
        ),
    ),
)
