"""The MySQL store."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

_STORE: Final = "tests/stores/mysql"
_SUITE: Final = f"{_STORE}/test_conformance.py::TestMySQL::"

MUTANTS: Final = (
    Mutant(
        name="mysql: a probe that did not run cuts a newer pause short",
        why="a provider that is down is asked again before its pause is over",
        file="stores/mysql/controls.sql",
        text="automatic = 1 and until > :now\n  and until - interval length microsecond <= :claimed_at;",
        instead="automatic = 1 and until > :now;",
        killers=(f"{_SUITE}test_a_pause_that_was_set_since_a_probe_is_not_cut_short_by_it",),
    ),
    Mutant(
        name="mysql: writes under a lease are not fenced",
        why="a late worker ends what another has taken over",
        file="stores/mysql/settling.py",
        text=" and m.token = {literal(token)})",
        instead=" and {literal(token)} is not null)",
        killers=(f"{_SUITE}test_a_late_worker_cannot_settle_what_another_has_taken_over",),
    ),
    Mutant(
        name="mysql: an ack in a transaction is not fenced",
        why="a handler that lost its message commits its work, and its successor does it again",
        file="stores/mysql/settling.py",
        text='yield self._sql("hold", leases=leases(deliveries))',
        instead='yield self._sql("hold", leases=Sql(f"m.id in {several(sorted(id_ for id_, _ in unique))}"))',
        killers=(f"{_SUITE}test_a_worker_that_lost_the_lease_cannot_ack_and_their_writes_roll_back",),
    ),
    Mutant(
        name="mysql: a write goes on after its transaction was aborted",
        why="on a cluster a settlement is written half, or twice",
        file="stores/mysql/settling.py",
        text="({' or '.join(held)}) and {begun})",
        instead="({' or '.join(held)}))",
        killers=(
            f"{_STORE}/test_aborted_transactions.py::"
            "test_a_settlement_leaves_alone_what_was_taken_over_when_it_was_aborted",
            f"{_STORE}/test_aborted_transactions.py::test_an_aborted_settlement_is_carried_out_whole_and_once",
        ),
    ),
    Mutant(
        name="mysql: repeatable read is good enough",
        why="an idle worker blocks every publisher",
        file="stores/mysql/link.py",
        text='"set session transaction isolation level read committed",',
        instead='"set session transaction isolation level repeatable read",',
        killers=(f"{_STORE}/test_connections.py::test_every_connection_is_at_read_committed",),
    ),
    Mutant(
        name="mysql: the isolation level is not verified",
        why="a proxy that keeps repeatable read blocks every publisher",
        file="stores/mysql/link.py",
        text="        if isolation != READ_COMMITTED:",
        instead="        if not isolation:",
        killers=(
            f"{_STORE}/test_connections.py::test_a_session_that_does_not_go_to_read_committed_is_refused",
        ),
    ),
    Mutant(
        name="mysql: a delivery is not counted at the claim",
        why="a message that kills its process is never given up",
        file="stores/mysql/claim.sql",
        text="m.deliveries = least(m.deliveries, 2147483646) + 1,",
        instead="m.deliveries = 1,",
        killers=(
            f"{_SUITE}test_every_lost_lease_is_counted_as_a_delivery_and_not_as_an_attempt",
            f"{_SUITE}test_a_release_keeps_what_earlier_lost_leases_counted",
        ),
    ),
    Mutant(
        name="mysql: a claimed message does not hold its key",
        why="a message overtakes an earlier one of its ordering key that waits to be retried",
        file="stores/mysql/claim.sql",
        text=" + 1,\n    m.head_key = m.ordering_key,",
        instead=" + 1,",
        killers=(f"{_SUITE}test_a_started_message_that_comes_back_later_holds_its_key_until_then",),
    ),
    Mutant(
        name="mysql: a message waits until a second too late",
        why="the next look comes after the message is due",
        file="stores/mysql/claim.sql",
        text="m.priority = :level and m.due_at > :now\n order by m.due_at, m.id limit 1)",
        instead="m.priority = :level and m.due_at > :now\n order by m.due_at desc, m.id limit 1)",
        killers=(f"{_SUITE}test_the_next_look_is_worth_it_exactly_when_the_next_message_is_due",),
    ),
    Mutant(
        name="mysql: a message is claimed a moment late",
        why="a worker that wakes up when a message is due does not get it",
        file="stores/mysql/claim.sql",
        text="m.due_at <= :now and :within",
        instead="m.due_at < :now and :within",
        killers=(f"{_SUITE}test_a_message_is_claimed_at_the_microsecond_it_is_due_and_not_before",),
    ),
    Mutant(
        name="mysql: a timer id is looked for and then taken",
        why="two publishes of one timer id at the same time store two messages",
        file="stores/mysql/schema.sql",
        text="    unique key nightmail_timer (queue_timer),\n",
        instead="    key nightmail_timer (queue_timer),\n",
        killers=(
            f"{_STORE}/test_joining.py::TestOvertaking::"
            "test_of_two_publishes_without_a_window_the_second_gives_way_and_its_transaction_goes_on",
        ),
    ),
    Mutant(
        name="mysql: a renewal shortens a lease",
        why="a long lease that a handler asked for ends early",
        file="stores/mysql/under_lease.sql",
        text="set m.lease_until = greatest(m.lease_until, :now + interval :lease microsecond)",
        instead="set m.lease_until = :now + interval :lease microsecond",
        killers=(f"{_SUITE}test_extending_never_shortens_a_lease",),
    ),
    Mutant(
        name="mysql: a password goes out in clear text",
        why="who listens on the line has the password",
        file="stores/mysql/connect.py",
        text='IN_CLEAR_TEXT: Final = {"mysql_clear_password": _Refuses, "dialog": _Refuses}',
        instead="IN_CLEAR_TEXT: Final[dict[str, type[_Refuses]]] = {}",
        killers=(
            f"{_STORE}/test_secrets.py::test_a_server_that_asks_for_the_password_in_clear_text_does_not_get_it",
        ),
    ),
    Mutant(
        name="mysql: TLS that a server does not offer is left out",
        why="who stands in between reads everything",
        file="stores/mysql/careful.py",
        text="            if self._ssl_context and not self.server_capabilities & _CAN_TLS:",
        instead="            if self._ssl_context is False:",
        killers=("tests/security/test_tls.py::test_mysql_tls_is_never_left_out_in_silence[aiomysql]",),
    ),
    Mutant(
        name="mysql: a dead letter too large for its reader is offered",
        why="one dead letter ends every worker that reads it",
        file="stores/mysql/letters.sql",
        text="m.body_bytes > :max_body_bytes or ",
        instead="",
        killers=(f"{_SUITE}test_a_letter_over_the_limit_of_the_reader_is_given_up_unread_and_kept",),
    ),
    Mutant(
        name="mysql: a message that is handed back forgets its last error",
        why="`why` does not say why a message failed after its worker was restarted",
        file="stores/mysql/settle.sql",
        text=" when 'release' then m.last_error end,",
        instead=" end,",
        killers=(f"{_SUITE}test_a_message_that_is_handed_back_keeps_its_last_error",),
    ),
    Mutant(
        name="mysql: a worker seen earlier takes the place of the last consumer",
        why="`why` names the wrong process, and too early a time",
        file="stores/mysql/controls.sql",
        text="    seen_at = greatest(seen_at, :seen_at);",
        instead="    seen_at = :seen_at;",
        killers=(f"{_SUITE}test_of_several_consumers_that_left_the_one_seen_last_is_known",),
    ),
    Mutant(
        name="mysql: idle workers put off a look at what is paused",
        why="a queue whose pause has ended stands still for up to five seconds",
        file="stores/mysql/claiming.py",
        text="        expected = {queue: ZERO for queue in queues if self._pauses.are_known([queue])}",
        instead="        expected: dict[str, timedelta] = {}",
        killers=(f"{_STORE}/test_look_ahead.py::test_a_look_ahead_leaves_it_to_a_claim_when_a_pause_ends",),
    ),
    Mutant(
        name="mysql: idle workers put off a look at the later of two due times",
        why="a message of another priority waits for up to five seconds",
        file="stores/mysql/claiming.py",
        text="expected[others[place]] = min(next_in, ",
        instead="expected[others[place]] = max(next_in, ",
        killers=(
            f"{_STORE}/test_look_ahead.py::TestLookAhead::test_a_look_ahead_tells_of_each_queue_when_something_is_due",
        ),
    ),
    Mutant(
        name="mysql: a claim goes by the client's clock",
        why="a process whose clock is off delivers early or late, and takes over what others still have",
        file="stores/mysql/times.py",
        text="    moment = clock.now()\n",
        instead="    moment = clock.now() or datetime.now(UTC)\n",
        killers=(f"{_STORE}/test_clocks.py::TestServerClocks::test_what_is_due_is_due_by_the_servers_clock",),
    ),
    Mutant(
        name="mysql: a claim hands out what is not committed",
        why="two workers run one message when the commit fails",
        file="stores/mysql/claiming.py",
        text='            packet = [*writes, *upcoming, Sql("commit")]\n',
        instead='            packet = [*writes, *upcoming, Sql("do 0")]\n',
        killers=(f"{_STORE}/test_outages.py::test_a_claim_whose_commit_fails_hands_nothing_out",),
    ),
    Mutant(
        name="mysql: a dead letter is moved in two transactions",
        why="a message whose settlement is interrupted is delivered and a dead letter, too",
        file="stores/mysql/settling.py",
        text='            writes.append(self._sql("bury", leases=fence, now=moment, letters=letters))\n',
        instead='            writes.append(self._sql("bury", leases=fence, now=moment, letters=letters))\n'
        '            writes += [Sql("commit"), Sql("begin")]\n',
        killers=(
            f"{_STORE}/test_aborted_transactions.py::test_an_aborted_settlement_is_carried_out_whole_and_once",
        ),
    ),
    Mutant(
        name="mysql: any certificate will do",
        why="who answers in the place of the server gets every message, and what proves the password",
        file="stores/mysql/connect.py",
        text='    context.check_hostname = _yes_or_no("ssl_check_hostname", given.get("ssl_check_hostname", "true"))\n',
        instead="    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE\n",
        killers=(f"{_STORE}/test_unencrypted.py::test_a_certificate_of_an_unknown_authority_is_refused",),
    ),
    Mutant(
        name="mysql: a certificate of any host will do",
        why="who has a certificate of any host can answer in the place of the server",
        file="stores/mysql/connect.py",
        text='given.get("ssl_check_hostname", "true")',
        instead='given.get("ssl_check_hostname", "false")',
        killers=(f"{_STORE}/test_unencrypted.py::test_a_certificate_for_another_host_is_refused",),
    ),
    Mutant(
        name="mysql: a renewal is not fenced",
        why="a late worker keeps a message that another has",
        file="stores/mysql/settling.py",
        text='            fence = leases(chosen, begun)\n            return [self._sql("extend",',
        instead='            fence = Sql(f"(m.id in {several(sorted({each.id for each in chosen}))} and {begun})")\n'
        '            return [self._sql("extend",',
        killers=(f"{_SUITE}test_a_late_worker_cannot_extend_the_lease_of_its_successor",),
    ),
    Mutant(
        name="mysql: the index of claims has no due time",
        why="a claim reads everything that is due later, and gets slower as the queue grows",
        file="stores/mysql/schema.sql",
        text="    key nightmail_claim (queue, parked, priority, due_at, id, superseded),",
        instead="    key nightmail_claim (queue, parked, priority, id, superseded),",
        killers=(
            "tests/plans/test_mysql_plans.py::"
            "test_what_is_read_follows_the_batch_and_not_the_backlog[never analyzed]",
        ),
    ),
)
