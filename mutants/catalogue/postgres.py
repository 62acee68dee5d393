"""The Postgres store."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

_STORE: Final = "tests/stores/postgres"
_SUITE: Final = f"{_STORE}/test_conformance.py::TestPostgres::"
_FENCE: Final = "    where m.id = any(:ids::bigint[]) and m.token = (:tokens::uuid[])[width_bucket(m.id, :ids::bigint[])]\n"
_NO_FENCE: Final = "    where m.id = any(:ids::bigint[])\n"

MUTANTS: Final = (
    Mutant(
        name="postgres: a probe that did not run cuts a newer pause short",
        why="a provider that is down is asked again before its pause is over",
        file="stores/postgres/controls.sql",
        text="      and (c.until at time zone 'UTC' - c.length) at time zone 'UTC' <= :claimed_at::timestamptz\n",
        instead="      and :claimed_at::timestamptz is not null\n",
        killers=(f"{_SUITE}test_a_pause_that_was_set_since_a_probe_is_not_cut_short_by_it",),
    ),
    Mutant(
        name="postgres: done is not fenced",
        why="a late worker deletes what another has taken over",
        file="stores/postgres/settle.sql",
        text=f"{_FENCE}    returning m.id, m.queue, m.head_key\n",
        instead=f"{_NO_FENCE}    returning m.id, m.queue, m.head_key\n",
        killers=(f"{_SUITE}test_a_late_worker_cannot_settle_what_another_has_taken_over",),
    ),
    Mutant(
        name="postgres: dead is not fenced",
        why="a late worker buries what another has taken over",
        file="stores/postgres/settle.sql",
        text=f"{_FENCE}    returning m.*, ",
        instead=f"{_NO_FENCE}    returning m.*, ",
        killers=(
            f"{_SUITE}test_a_repeated_settlement_that_was_carried_out_before_is_not_carried_out_twice",
            f"{_SUITE}test_of_three_holders_after_one_another_only_the_last_may_settle",
            f"{_SUITE}test_a_late_worker_cannot_settle_what_another_has_taken_over",
        ),
    ),
    Mutant(
        name="postgres: a retry is not fenced",
        why="a late worker takes the lease of its successor",
        file="stores/postgres/settle.sql",
        text="\n      and m.token = (:back_tokens::uuid[])[width_bucket(m.id, :back_ids::bigint[])]",
        instead="",
        killers=(
            f"{_SUITE}test_a_late_worker_cannot_settle_what_another_has_taken_over",
            f"{_SUITE}test_a_late_and_a_good_lease_on_one_message_in_one_batch_are_told_apart",
        ),
    ),
    Mutant(
        name="postgres: a renewal is not fenced",
        why="a late worker keeps a message that another has",
        file="stores/postgres/settle.sql",
        text=f"with held as materialized (\n    select m.id from nightmail_messages as m\n{_FENCE}"
        "    order by m.id\n    for update skip locked\n)",
        instead=f"with held as materialized (\n    select m.id from nightmail_messages as m\n{_NO_FENCE}"
        "    order by m.id\n    for update skip locked\n)",
        killers=(f"{_SUITE}test_a_late_worker_cannot_extend_the_lease_of_its_successor",),
    ),
    Mutant(
        name="postgres: an ack in a transaction is not fenced",
        why="a handler that lost its message commits its work, and ends the message of its successor",
        file="stores/postgres/settle.sql",
        text="and m.token = (:tokens::uuid[])[pg_catalog.width_bucket(m.id, :ids::bigint[])]\n",
        instead="and m.token is not null\n",
        killers=(f"{_SUITE}test_a_worker_that_lost_the_lease_cannot_ack_and_their_writes_roll_back",),
    ),
    Mutant(
        name="postgres: an ack takes what it can",
        why="half of a batch is acknowledged in a transaction that should have failed",
        file="stores/postgres/settle.sql",
        text="\n      and (select count(*) from held) = pg_catalog.cardinality(:ids::bigint[])",
        instead="",
        killers=(f"{_SUITE}test_an_ack_is_all_or_nothing_and_names_the_lost_ones",),
    ),
    Mutant(
        name="postgres: a delivery is not counted at the claim",
        why="a message that kills its process is never given up",
        file="stores/postgres/claim.sql",
        text="        deliveries = least(m.deliveries, 2147483646) + 1, head_key = m.ordering_key",
        instead="        deliveries = 1, head_key = m.ordering_key",
        killers=(f"{_SUITE}test_every_lost_lease_is_counted_as_a_delivery_and_not_as_an_attempt",),
    ),
    Mutant(
        name="postgres: a claimed message does not hold its key",
        why="a message overtakes an earlier one of its ordering key that waits to be retried",
        file="stores/postgres/claim.sql",
        text="        deliveries = least(m.deliveries, 2147483646) + 1, head_key = m.ordering_key",
        instead="        deliveries = least(m.deliveries, 2147483646) + 1",
        killers=(f"{_SUITE}test_a_started_message_that_comes_back_later_holds_its_key_until_then",),
    ),
    Mutant(
        name="postgres: a late arrival is delivered early",
        why="a message without an ordering key runs before its time",
        file="stores/postgres/claim.sql",
        text="                  and m.due_at <= coalesce(:now, statement_timestamp())\n"
        "                  and (m.token is null or m.lease_until <= coalesce(:now, statement_timestamp()))\n"
        "                  and (turn.paused ? m.ordering_key) is not true\n",
        instead="                  and (m.token is null or m.lease_until <= coalesce(:now, statement_timestamp()))\n"
        "                  and (turn.paused ? m.ordering_key) is not true\n",
        killers=(
            f"{_SUITE}test_a_message_is_claimed_at_the_microsecond_it_is_due_and_not_before",
            f"{_SUITE}test_what_is_not_due_is_never_handed_out_while_the_clock_goes_on",
        ),
    ),
    Mutant(
        name="postgres: a message is claimed a moment late",
        why="a worker that wakes up when a message is due does not get it",
        file="stores/postgres/claim.sql",
        text="                  and m.due_at <= coalesce(:now, statement_timestamp())\n"
        "                  and (m.token is null or m.lease_until <= coalesce(:now, statement_timestamp()))\n"
        "                  and (turn.paused ? m.ordering_key) is not true\n",
        instead="                  and m.due_at < coalesce(:now, statement_timestamp())\n"
        "                  and (m.token is null or m.lease_until <= coalesce(:now, statement_timestamp()))\n"
        "                  and (turn.paused ? m.ordering_key) is not true\n",
        killers=(f"{_SUITE}test_a_message_is_claimed_at_the_microsecond_it_is_due_and_not_before",),
    ),
    Mutant(
        name="postgres: a timer id is looked for and then taken",
        why="of two publishes of one timer id at the same time, one fails and aborts its caller's transaction",
        file="stores/postgres/publish.sql",
        text="          and d.until > coalesce(:now::timestamptz, statement_timestamp()))\n"
        "    on conflict (queue, timer_key) where timer_key is not null do nothing\n",
        instead="          and d.until > coalesce(:now::timestamptz, statement_timestamp()))\n"
        "      and not exists (\n"
        "        select from nightmail_messages as m where m.queue = :queue and m.timer_key = :timer_id)\n",
        killers=(
            f"{_STORE}/test_joining.py::TestOvertaking::"
            "test_of_two_publishes_without_a_window_the_second_gives_way_and_its_transaction_goes_on",
        ),
    ),
    Mutant(
        name="postgres: a function is called by its bare name",
        why="who may create functions in a caller's schema runs code as the caller",
        file="stores/postgres/settle.sql",
        text="[pg_catalog.width_bucket(m.id, :ids::bigint[])]",
        instead="[width_bucket(m.id, :ids::bigint[])]",
        killers=(
            f"{_STORE}/test_search_path.py::"
            "test_functions_that_others_put_into_a_schema_are_not_run_in_a_callers_transaction",
        ),
    ),
    Mutant(
        name="postgres: the server's isolation level is kept",
        why="claims fail where the database is serializable by default",
        file="stores/postgres/link.py",
        text='            "default_transaction_isolation": ISOLATION,\n',
        instead="",
        killers=(
            f"{_STORE}/test_isolation.py::"
            "test_our_connections_are_at_read_committed_whatever_the_databases_default",
        ),
    ),
    Mutant(
        name="postgres: a dead letter too large for its reader is offered",
        why="one dead letter ends every worker that reads it",
        file="stores/postgres/letters.sql",
        text="taken.body_bytes > :max_body_bytes::integer or ",
        instead="",
        killers=(f"{_SUITE}test_a_letter_over_the_limit_of_the_reader_is_given_up_unread_and_kept",),
    ),
    Mutant(
        name="postgres: the error of a constraint quotes the row",
        why="a payload stands in logs and tracebacks",
        file="stores/postgres/errors.py",
        text="            link.detail = None\n",
        instead="            pass\n",
        killers=(
            f"{_STORE}/test_refused_rows.py::TestRowsThatAConstraintRefuses::"
            "test_a_publish_tells_nothing_of_the_row",
        ),
    ),
    Mutant(
        name="postgres: a quoted row ends with its first line",
        why="a timer id or an ordering key of several lines stands in logs and tracebacks",
        file="stores/postgres/errors.py",
        text="    return text.partition(_DETAIL)[0]",
        instead="    before, _, after = text.partition(_DETAIL)\n"
        '    return before + "".join(after.partition("\\n")[1:])',
        killers=(
            f"{_STORE}/test_refused_rows.py::TestRowsThatAConstraintRefuses::"
            "test_a_publish_in_a_callers_transaction_tells_nothing_of_the_row",
        ),
    ),
    Mutant(
        name="postgres: a message that is handed back forgets its last error",
        why="`why` does not say why a message failed after its worker was restarted",
        file="stores/postgres/settle.sql",
        text="            when 'release' then m.last_error end,",
        instead="            end,",
        killers=(f"{_SUITE}test_a_message_that_is_handed_back_keeps_its_last_error",),
    ),
    Mutant(
        name="postgres: commands that only look write into the tables",
        why="`nightmail check` changes a database, and fails for an account that may only read",
        file="stores/postgres/migrate.py",
        text="    if adopt:\n",
        instead="    if True:\n",
        killers=(
            "tests/schema/test_tables.py::test_an_account_that_may_write_nothing_checks_tables_that_alembic_made",
        ),
    ),
    Mutant(
        name="postgres: nothing is looked for after listening was interrupted",
        why="what was published meanwhile waits for the next poll",
        file="stores/postgres/listen.py",
        text="        self._missed()\n        self.ring_all()\n        while",
        instead="        while",
        killers=(f"{_STORE}/test_wakeups.py::test_a_killed_listening_connection_is_reopened_and_rings",),
    ),
    Mutant(
        name="postgres: a claim goes by the client's clock",
        why="a process whose clock is off delivers early or late, and takes over what others still have",
        file="stores/postgres/claiming.py",
        text='            "now": self._clock.now(),\n            "heeding"',
        instead='            "now": self._clock.now() or datetime.now(UTC),\n            "heeding"',
        killers=(f"{_STORE}/test_clocks.py::TestServerClocks::test_what_is_due_is_due_by_the_servers_clock",),
    ),
    Mutant(
        name="postgres: the index of claims has no due time",
        why="a claim reads everything that is due later, and gets slower as the queue grows",
        file="stores/postgres/schema.sql",
        text="create index nightmail_claim on nightmail_messages (queue, priority, due_at, id)",
        instead="create index nightmail_claim on nightmail_messages (queue, priority, id)",
        killers=(
            "tests/plans/test_postgres_plans.py::"
            "test_what_is_read_follows_the_batch_and_not_the_backlog[never analyzed]",
        ),
    ),
    Mutant(
        name="postgres: a body too large for its reader is read",
        why="one message that other software wrote fills the memory of every worker",
        file="stores/postgres/claim.sql",
        text="picked.body_bytes > :max_body_bytes::integer or ",
        instead="",
        killers=(f"{_STORE}/test_odd_rows.py::test_a_body_that_is_too_large_is_never_in_memory",),
    ),
    Mutant(
        name="postgres: verify-full checks nothing",
        why="who answers in the place of the server gets every message, and what proves the password",
        file="stores/postgres/connect.py",
        text='{"ssl": str, ',
        instead='{"ssl": lambda mode: mode.replace("verify-full", "require"), ',
        killers=(f"{_STORE}/test_unencrypted.py::test_a_certificate_for_another_host_is_refused",),
    ),
)
