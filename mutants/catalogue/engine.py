"""The engine."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

_UNIT: Final = "tests/unit"

MUTANTS: Final = (
    Mutant(
        name="a probe that did not run is not made up for",
        why="messages that are too old to run keep a queue paused for good",
        file="engine/sorting.py",
        text="                    self._pausing.did_not_run(delivery)",
        instead="                    pass",
        killers=(
            f"{_UNIT}/test_breakers.py::test_messages_that_are_too_old_to_run_do_not_keep_a_queue_paused",
        ),
    ),
    Mutant(
        name="a shutdown is a failure",
        why="a deployment costs every running message an attempt",
        file="engine/attempt.py",
        text="                result.decision, result.error = Release(), None",
        instead='                result.error = RuntimeError("interrupted")',
        killers=(
            f"{_UNIT}/test_drain.py::"
            "test_past_the_grace_period_handlers_are_cancelled_and_no_attempt_is_counted",
        ),
    ),
    Mutant(
        name="a shutdown is done",
        why="what a deployment interrupts is lost",
        file="engine/attempt.py",
        text="                result.decision, result.error = Release(), None",
        instead="                result.decision, result.error = Done(), None",
        killers=(
            f"{_UNIT}/test_drain.py::"
            "test_past_the_grace_period_handlers_are_cancelled_and_no_attempt_is_counted",
        ),
    ),
    Mutant(
        name="what is not decided is done",
        why="a handler that failed, or forgot to decide, loses its message",
        file="engine/attempt.py",
        text="                outcome = self._retry(delivery, error or NoDecision())",
        instead="                outcome = _DONE",
        killers=(f"{_UNIT}/test_results.py::test_an_error_is_a_failed_attempt_for_the_policy",),
    ),
    Mutant(
        name="a broken policy is done",
        why="a mistake in a retry policy loses messages",
        file="engine/attempt.py",
        text="            return Dead(Reason.POLICY_ERROR, self._settings.described(broken))",
        instead="            return _DONE",
        killers=(
            f"{_UNIT}/test_results.py::test_a_policy_that_raises_sends_the_message_to_the_dead_letters",
        ),
    ),
    Mutant(
        name="a message is given up one crash too early",
        why="the promised number of deliveries is not kept",
        file="engine/attempt.py",
        text="        if delivery.deliveries > self._settings.max_deliveries:",
        instead="        if delivery.deliveries >= self._settings.max_deliveries:",
        killers=(
            f"{_UNIT}/test_poison.py::"
            "test_a_message_is_buried_unrun_after_the_tenth_loss_and_run_after_the_ninth",
        ),
    ),
    Mutant(
        name="a message that kills its process is never given up",
        why="one message crashes the service for ever",
        file="engine/attempt.py",
        text="            return Dead(Reason.MAX_DELIVERIES, ran=False)",
        instead="            return None",
        killers=(
            f"{_UNIT}/test_poison.py::"
            "test_a_message_is_buried_unrun_after_the_tenth_loss_and_run_after_the_ninth",
        ),
    ),
    Mutant(
        name="what was replaced runs again",
        why="a timer that was moved fires twice",
        file="engine/attempt.py",
        text="        if delivery.superseded:",
        instead="        if delivery.superseded and delivery.attempts > 1000:",
        killers=(f"{_UNIT}/test_results.py::test_a_superseded_message_is_dropped_unrun_and_told_of",),
    ),
    Mutant(
        name="an expired message runs",
        why="a handler does what was no longer wanted",
        file="engine/attempt.py",
        text="delivery.expires_at <= delivery.claimed_at",
        instead="delivery.expires_at < delivery.published_at",
        killers=(f"{_UNIT}/test_results.py::test_an_expired_message_is_buried_unrun",),
    ),
    Mutant(
        name="a lease that may have ended starts a handler",
        why="a message runs twice at once after a pause",
        file="engine/handling.py",
        text="            if self._leases.surely_holds(delivery, now):",
        instead="            if delivery.id is not None:",
        killers=(
            f"{_UNIT}/test_store_outages.py::"
            "test_messages_whose_lease_may_have_ended_before_the_reply_came_go_back_before_they_are_started",
        ),
    ),
    Mutant(
        name="a lease is counted from the answer",
        why="after a slow answer a worker trusts a lease that has ended",
        file="engine/claiming.py",
        text="            self._sorting.take(claimed, sent, until)",
        instead="            self._sorting.take(claimed, sent, time.monotonic() + until - sent)",
        killers=(
            f"{_UNIT}/test_store_outages.py::"
            "test_messages_whose_lease_may_have_ended_before_the_reply_came_go_back_before_they_are_started",
        ),
    ),
    Mutant(
        name="all claims of a worker have one token",
        why="a handler that lost its message to its own worker can still end it",
        file="engine/claiming.py",
        text="        token, until = self._presence.new_token(), sent + lease.total_seconds()",
        instead="        token = vars(self).setdefault('token', self._presence.new_token())\n"
        "        until = sent + lease.total_seconds()",
        killers=(f"{_UNIT}/test_leases.py::test_every_claim_has_a_token_of_its_own",),
    ),
    Mutant(
        name="an outcome without an answer is forgotten",
        why="what was handled during an outage runs again",
        file="engine/settling.py",
        text="            self._finished.ask_again(batch)\n",
        instead="            self._finished.drop_first(len(batch))\n",
        killers=(f"{_UNIT}/test_settling.py::test_a_settlement_whose_request_was_lost_is_written_later",),
    ),
    Mutant(
        name="a repeated outcome does not say so",
        why="a lost reply is reported as a lost lease",
        file="engine/finished.py",
        text="replace(settlement, repeated=True)",
        instead="settlement",
        killers=(
            f"{_UNIT}/test_settling.py::"
            "test_a_settlement_whose_reply_was_lost_is_uncertain_and_not_a_lost_lease",
        ),
    ),
    Mutant(
        name="a locked message counts as written",
        why="an outcome is lost when another transaction has the row",
        file="engine/settling.py",
        text="        self._finished.put_all(busy)\n",
        instead="",
        killers=(
            f"{_UNIT}/test_settling.py::"
            "test_a_message_locked_by_an_open_transaction_is_asked_for_again_until_it_is_free",
        ),
    ),
    Mutant(
        name="what an unanswered claim took is recalled only when there is room for another claim",
        why="while all handlers are busy, no worker has its messages until their lease ends",
        file="engine/claiming.py",
        text='lost: it is recalled whether there is room for another or not.\n        """\n'
        "        if self._leases.unconfirmed is not None:\n",
        instead='lost: it is recalled whether there is room for another or not.\n        """\n        if False:\n',
        killers=(
            f"{_UNIT}/test_store_outages.py::"
            "test_what_a_claim_took_before_its_reply_was_lost_is_recalled_though_there_is_no_room_any_more",
        ),
    ),
    Mutant(
        name="a claim without an answer is not recalled",
        why="after a lost reply messages wait for a whole lease",
        file="engine/claiming.py",
        text="                await self._store.recall(self._run.queues, token)\n",
        instead="                pass\n",
        killers=(
            f"{_UNIT}/test_store_outages.py::"
            "test_what_a_claim_took_before_its_reply_was_lost_is_recalled_and_run",
        ),
    ),
    Mutant(
        name="a wake-up during a claim is dropped",
        why="a message waits for the next poll, five seconds",
        file="engine/claiming.py",
        text="        self._leases.unconfirmed = None\n        self._size.went_well(",
        instead="        self._leases.unconfirmed = None\n        self.bell.clear()\n        self._size.went_well(",
        killers=(
            f"{_UNIT}/test_polling.py::"
            "test_a_message_published_between_the_claim_and_the_wait_is_not_slept_through",
        ),
    ),
    Mutant(
        name="only a wake-up makes a worker look",
        why="a lost wake-up is a stuck queue",
        file="engine/next_look.py",
        text="    wait = interval if next_in is None else min(next_in, interval)",
        instead="    wait = timedelta(days=1) if next_in is None else next_in",
        killers=(
            f"{_UNIT}/test_next_look.py::"
            "test_the_next_look_is_when_something_is_due_and_at_the_latest_after_the_interval",
        ),
    ),
    Mutant(
        name="a look that failed is not made up for",
        why="after a failed look a message waits for the next poll, five seconds",
        file="engine/retry_loop.py",
        text="            await happens_before(asyncio.sleep(backoff(failures)), self._stopping)",
        instead="            await happens_before(asyncio.sleep(5 + backoff(failures)), self._stopping)",
        killers=(
            f"{_UNIT}/test_polling.py::"
            "test_a_look_that_a_wake_up_asked_for_and_that_failed_is_made_up_for_at_once",
        ),
    ),
    Mutant(
        name="pauses never become short again",
        why="after its first outage a worker is slow for ever",
        file="engine/retry_loop.py",
        text="                failures = 0\n                self.is_failing = False",
        instead="                self.is_failing = False",
        killers=(f"{_UNIT}/test_store_outages.py::test_waiting_starts_afresh_after_a_recovery",),
    ),
    Mutant(
        name="a renewal is counted from its answer",
        why="after a slow renewal a worker trusts a lease that has ended",
        file="engine/leases.py",
        text="            self._leases.renewed(delivery, sent + self._lease.total_seconds())",
        instead="            self._leases.renewed(delivery, self._now() + self._lease.total_seconds())",
        killers=(
            f"{_UNIT}/test_leases.py::test_a_renewed_lease_surely_holds_from_the_moment_the_renewal_was_sent",
        ),
    ),
    Mutant(
        name="a locked message counts as lost",
        why="a handler that acknowledges in a transaction is reported as having lost its lease",
        file="engine/leases.py",
        text="        elif result is WriteResult.LOST:",
        instead="        else:",
        killers=(
            f"{_UNIT}/test_leases.py::"
            "test_a_locked_message_is_neither_lost_nor_renewed_and_is_asked_for_again",
        ),
    ),
    Mutant(
        name="leases are renewed too late",
        why="a short pause of the process loses its messages",
        file="engine/leases.py",
        text="        least = 5 / 6 if begun < self._crowded_until else 3 / 4",
        instead="        least = 5 / 6 if begun < self._crowded_until else 1 / 8",
        killers=(
            f"{_UNIT}/test_leases.py::test_a_lease_is_renewed_when_a_quarter_of_it_is_gone_and_not_before",
        ),
    ),
    Mutant(
        name="the keeper stops first",
        why="what still runs during a shutdown is taken over, and runs twice",
        file="engine/worker.py",
        text="        draining = asyncio.create_task(self._draining.drain(claims))\n        await undisturbed(draining)\n"
        "        if draining.cancelled():",
        instead="        self._run.leases.keep_only(())\n"
        "        draining = asyncio.create_task(self._draining.drain(claims))\n        await undisturbed(draining)\n"
        "        if draining.cancelled():",
        killers=(f"{_UNIT}/test_leases.py::test_handlers_that_finish_during_a_stop_keep_their_leases",),
    ),
    Mutant(
        name="what was fetched ahead is kept at a stop",
        why="after a deployment messages wait for a whole lease",
        file="engine/draining.py",
        text="        self._run.hand_back(self._in_flight.give_back())\n",
        instead="        self._in_flight.give_back()\n",
        killers=(
            f"{_UNIT}/test_drain.py::test_what_has_not_started_is_handed_back_at_once_as_if_never_claimed",
        ),
    ),
    Mutant(
        name="a suspect runs with others",
        why="a message that kills its process takes its neighbours to the dead letters",
        file="engine/quarantine.py",
        text="    return delivery.deliveries >= QUARANTINED_FROM",
        instead="    return delivery.deliveries > QUARANTINED_FROM",
        killers=(
            f"{_UNIT}/test_poison.py::test_a_message_is_quarantined_from_its_third_unexplained_delivery_on",
        ),
    ),
    Mutant(
        name="what waits to be written takes no memory",
        why="during an outage a worker claims until its memory is full",
        file="engine/room.py",
        text="        return CLAIM_BYTES - self._in_flight.waiting_bytes - self._finished.bytes",
        instead="        return CLAIM_BYTES - self._in_flight.waiting_bytes",
        killers=(
            f"{_UNIT}/test_claim_bytes.py::"
            "test_messages_that_cannot_be_written_yet_take_their_share_of_the_bytes",
        ),
    ),
    Mutant(
        name="a task left behind still speaks for its message",
        why="a publish long after the handler re-arms a timer that is gone",
        file="engine/current.py",
        text="    if current is None or timer_id is None or current.store is not store or current.is_over:",
        instead="    if current is None or timer_id is None or current.store is not store:",
        killers=(
            f"{_UNIT}/test_current_delivery.py::"
            "test_a_task_that_the_handler_waits_for_belongs_to_it_and_one_it_leaves_behind_does_not",
        ),
    ),
    Mutant(
        name="a stop waits for the store as long as it takes",
        why="during an outage a deployment hangs until the process is killed",
        file="engine/shutdown.py",
        text="LAST_WRITES_SECONDS: Final = 2.5",
        instead="LAST_WRITES_SECONDS: Final = 3600.0",
        killers=(
            f"{_UNIT}/test_bounded_stop.py::"
            "test_a_broker_stops_within_its_grace_period_and_five_seconds_whatever_the_store_does",
        ),
    ),
    Mutant(
        name="a stop waits for what ignores its cancellation",
        why="one call that cannot be interrupted hangs a deployment until the process is killed",
        file="engine/shutdown.py",
        text="            leave_behind(task)\n    return task.done()",
        instead="            task.cancel()\n            await asyncio.wait({task})\n    return task.done()",
        killers=(
            f"{_UNIT}/test_bounded_stop.py::"
            "test_a_broker_stops_within_its_grace_period_and_five_seconds_whatever_the_store_does",
        ),
    ),
    Mutant(
        name="after a slow look every idle worker looks by itself",
        why="a server that is slow is asked by every subscriber at once",
        file="engine/idle_looks.py",
        text="        return alarm.is_routine or bool(alarm.seconds_from(time.monotonic()))",
        instead="        return bool(alarm.seconds_from(time.monotonic()))",
        killers=(
            "tests/unit/test_idle_looks.py::"
            "test_a_look_that_takes_longer_than_the_interval_makes_only_those_claim_for_whom_there_is_something",
        ),
    ),
    Mutant(
        name="a claim beside other workers is as large as it can be",
        why="what has become due for one subscriber waits for the claim of thousands that drains another's queue",
        file="engine/prefetch.py",
        text="min(room, self._short) if short else room",
        instead="room",
        killers=(
            f"{_UNIT}/test_claim_and_settle_batching.py::"
            "test_a_claim_beside_other_workers_of_the_process_is_short",
        ),
    ),
)
