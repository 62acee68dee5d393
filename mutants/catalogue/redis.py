"""The Redis store."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

_STORE: Final = "tests/stores/redis"
_SUITE: Final = f"{_STORE}/test_conformance.py::TestRedis::"
_UNCERTAIN: Final = (
    f"{_STORE}/test_outages.py::TestLostReplies::"
    "test_a_publish_whose_reply_was_lost_is_uncertain_and_was_sent_once"
)
_LOOK_AT_EACH: Final = (
    "    for at = 1, #found, 2 do\n      look_at(queues[place], found[at])\n    end\n"
    "    room = room - #found / 2\n    if room == 0 then\n"
)

MUTANTS: Final = (
    Mutant(
        name="redis: a probe that did not run cuts a newer pause short",
        why="a provider that is down is asked again before its pause is over",
        file="stores/redis/probe_again.lua",
        text="if pause and pause.till > now and pause.till - pause.length <= claimed_at then",
        instead="if pause and pause.till > now then",
        killers=(f"{_SUITE}test_a_pause_that_was_set_since_a_probe_is_not_cut_short_by_it",),
    ),
    Mutant(
        name="redis: a settlement is not fenced",
        why="a late worker ends what another has taken over",
        file="stores/redis/settle.lua",
        text="  if found[1] ~= token or q.gone[id] then",
        instead="  if not found[1] or found[1] == '' or q.gone[id] then",
        killers=(f"{_SUITE}test_a_late_worker_cannot_settle_what_another_has_taken_over",),
    ),
    Mutant(
        name="redis: a transaction that acknowledges is not fenced",
        why="a handler that lost its message has its commands carried out, and its successor does the same again",
        file="stores/redis/held.lua",
        text="found == token and 'h' or 'l'",
        instead="found and 'h' or 'l'",
        killers=(
            f"{_STORE}/test_transaction.py::test_a_lease_that_was_lost_before_is_told_before_the_block_runs",
        ),
    ),
    Mutant(
        name="redis: a renewal is not fenced",
        why="a late worker keeps a message that another has",
        file="stores/redis/extend.lua",
        text="  if found[1] ~= token or not s then",
        instead="  if not s then",
        killers=(f"{_SUITE}test_a_late_worker_cannot_extend_the_lease_of_its_successor",),
    ),
    Mutant(
        name="redis: a handler that lost its message publishes in its name",
        why="a timer is armed twice",
        file="stores/redis/publish.lua",
        text="  if redis.pcall('HGET', own, 'token') ~= ARGV[7] then",
        instead="  if not redis.pcall('HGET', own, 'token') then",
        killers=(f"{_SUITE}test_a_late_worker_cannot_publish_in_the_name_of_its_delivery",),
    ),
    Mutant(
        name="redis: a claim that was recalled takes messages",
        why="after a lost reply messages are leased and no worker has them",
        file="stores/redis/claim.lua",
        text="  if redis.call('ZSCORE', q.claims, token) then",
        instead="  if redis.call('ZSCORE', q.claims, token) == 'never' then",
        killers=(
            f"{_STORE}/test_outages.py::test_a_claim_that_arrives_after_it_was_handed_back_takes_nothing",
        ),
    ),
    Mutant(
        name="redis: a delivery is not counted at the claim",
        why="a message that kills its process is never given up",
        file="stores/redis/claim.lua",
        text="      s.deliveries = one_more(s.deliveries)",
        instead="      s.deliveries = 1",
        killers=(f"{_SUITE}test_every_lost_lease_is_counted_as_a_delivery_and_not_as_an_attempt",),
    ),
    Mutant(
        name="redis: a message is claimed early",
        why="a delayed message runs before its time",
        file="stores/redis/claim.lua",
        text="  for _, id in ipairs(redis.call('ZRANGEBYSCORE', q.due .. level, '-inf', now, 'LIMIT', 0, count + q.held_back)) do",
        instead="  for _, id in ipairs(redis.call('ZRANGEBYSCORE', q.due .. level, '-inf', now + 1, 'LIMIT', 0, count + q.held_back)) do",
        killers=(f"{_SUITE}test_a_message_is_claimed_at_the_microsecond_it_is_due_and_not_before",),
    ),
    Mutant(
        name="redis: a message is claimed a moment late",
        why="a worker that wakes up when a message is due does not get it",
        file="stores/redis/claim.lua",
        text="'-inf', now, 'LIMIT', 0, count + q.held_back)) do",
        instead="'-inf', now - 1, 'LIMIT', 0, count + q.held_back)) do",
        killers=(f"{_SUITE}test_a_message_is_claimed_at_the_microsecond_it_is_due_and_not_before",),
    ),
    Mutant(
        name="redis: a renewal shortens a lease",
        why="a long lease that a handler asked for ends early",
        file="stores/redis/extend.lua",
        text="math.max(tonumber(before), till)",
        instead="till",
        killers=(f"{_SUITE}test_extending_never_shortens_a_lease",),
    ),
    Mutant(
        name="redis: a freed key does not ring",
        why="the next message of an ordering key waits for the next poll",
        file="stores/redis/common.lua",
        text="  redis.call('HDEL', q.heads, key)\n  q.rung = true\n",
        instead="  redis.call('HDEL', q.heads, key)\n",
        killers=(f"{_SUITE}test_the_end_of_a_message_rings_though_nothing_waits_for_its_key",),
    ),
    Mutant(
        name="redis: a script writes before it has looked",
        why="a key of a foreign type leaves half a message",
        file="stores/redis/common.lua",
        text="  for _, key in ipairs({ q.run, q.expired, q.later, q.waits, q.lines, q.blocked, q.dead, q.died, q.dead_due }) do\n"
        "    redis.call('ZCARD', key)\n  end\n",
        instead="",
        killers=(
            f"{_STORE}/test_tampering.py::"
            "test_a_foreign_type_in_the_place_of_a_queue_is_told_before_anything_is_written",
        ),
    ),
    Mutant(
        name="redis: the keys of a queue have no common tag",
        why="nothing works on a cluster",
        file="stores/redis/keys.py",
        text='        return f"{{{self.prefix}:{safe}}}"',
        instead='        return f"{self.prefix}:{safe}"',
        killers=(
            f"{_STORE}/test_keys.py::test_every_key_and_channel_of_a_queue_is_in_one_slot_whatever_its_name",
        ),
    ),
    Mutant(
        name="redis: a queue's name may move its tag",
        why="a queue with a brace in its name does not work on a cluster, or is another queue",
        file="stores/redis/keys.py",
        text='re.compile(r"[{}%\\x00-\\x20\\x7f]")',
        instead='re.compile(r"[\\x00-\\x20\\x7f]")',
        killers=(
            f"{_STORE}/test_keys.py::test_every_key_and_channel_of_a_queue_is_in_one_slot_whatever_its_name",
            f"{_STORE}/test_keys.py::test_no_two_queues_share_their_keys",
        ),
    ),
    Mutant(
        name="redis: a server that forgot its scripts is not told them",
        why="after a failover nothing works",
        file="stores/redis/link.py",
        text="        if is_unknown_script(answers[0]):",
        instead="        if answers[0] is None:",
        killers=(f"{_STORE}/test_outages.py::test_a_server_that_forgot_the_scripts_is_told_them_again",),
    ),
    Mutant(
        name="redis: a server that evicts is good enough",
        why="messages vanish when its memory is full",
        file="stores/redis/server.py",
        text='    elif policy != "noeviction":',
        instead='    elif policy == "allkeys-random":',
        killers=(
            f"{_STORE}/test_server_requirements.py::"
            "test_a_server_that_may_drop_messages_is_refused_and_the_setting_is_named",
        ),
    ),
    Mutant(
        name="redis: a dead letter too large for its reader is offered",
        why="one dead letter ends every worker that reads it",
        file="stores/redis/claim_dead.lua",
        text="#body > largest or ",
        instead="",
        killers=(f"{_SUITE}test_a_letter_over_the_limit_of_the_reader_is_given_up_unread_and_kept",),
    ),
    Mutant(
        name="redis: a recall goes on by rank",
        why="after a lost reply some messages wait for a whole lease",
        file="stores/redis/recalling.lua",
        text="    local first = id and rank_after(leases, till, id) or 0\n"
        "    local found = redis.call('ZRANGE', leases, first, first + room - 1, 'WITHSCORES')\n"
        f"{_LOOK_AT_EACH}"
        "      return struct.pack(CURSOR, place, which, tonumber(found[#found])) .. found[#found - 1]\n",
        instead="    local first = id and till or 0\n"
        "    local found = redis.call('ZRANGE', leases, first, first + room - 1, 'WITHSCORES')\n"
        "    local behind = redis.call('ZCARD', leases) - first - #found / 2\n"
        f"{_LOOK_AT_EACH}"
        "      return struct.pack(CURSOR, place, which, redis.call('ZCARD', leases) - behind) .. found[#found - 1]\n",
        killers=(
            f"{_STORE}/test_verbs_in_several_calls.py::"
            "test_a_recall_misses_nothing_that_moves_between_its_calls",
        ),
    ),
    Mutant(
        name="redis: a recall looks at all leases in one call",
        why="with many messages in flight a lost reply holds up every other client of the server",
        file="stores/redis/recalling.lua",
        text="  local place, which, till, id, room = 1, 1, nil, nil, MANY\n",
        instead="  local place, which, till, id, room = 1, 1, nil, nil, MANY * MANY\n",
        killers=(
            f"{_STORE}/test_verbs_in_several_calls.py::"
            "test_no_call_of_a_recall_looks_at_more_than_a_thousand_leases",
        ),
    ),
    Mutant(
        name="redis: a wake-up that may not be sent fails the publish",
        why="an account without that right gets an error for what is stored, and stores it again",
        file="stores/redis/common.lua",
        text="      redis.pcall(ARGV[2], q.bell, '')",
        instead="      redis.call(ARGV[2], q.bell, '')",
        killers=(
            f"{_STORE}/test_rights.py::"
            "test_concurrent_publishes_of_an_account_without_wakeups_are_stored_once_each",
        ),
    ),
    Mutant(
        name="redis: a postponed message keeps its last error",
        why="`why` shows an error of an attempt that no longer counts",
        file="stores/redis/settle.lua",
        text="    error = s.last > 0 and '' or nil",
        instead="    error = nil",
        killers=(f"{_SUITE}test_a_postponed_message_forgets_its_last_error",),
    ),
    Mutant(
        name="redis: a worker seen earlier takes the place of the last consumer",
        why="`why` names the wrong process, and too early a time",
        file="stores/redis/leaving.lua",
        text="    if own and own.seen <= seen then",
        instead="    if own and own.seen == seen then",
        killers=(f"{_SUITE}test_of_several_consumers_that_left_the_one_seen_last_is_known",),
    ),
    Mutant(
        name="redis: a dead letter that leaves stays in its group",
        why="groups no longer add up, and `dead groups` reads every letter for good",
        file="stores/redis/letters.lua",
        text="  if redis.pcall('ZREM', group, id) ~= 1 then",
        instead="  if redis.pcall('ZSCORE', group, id) then",
        killers=(f"{_STORE}/test_dead_letters.py::test_nothing_is_left_of_a_letter_that_is_gone",),
    ),
    Mutant(
        name="redis: groups are believed though letters are missing in them",
        why="`dead groups` is wrong for good where other software has deleted a group",
        file="stores/redis/dead_groups.lua",
        text="  answer[2] = 1",
        instead="  answer[2] = 0",
        killers=(
            f"{_STORE}/test_dead_letters.py::test_where_groups_were_tampered_with_the_letters_are_read",
        ),
    ),
    Mutant(
        name="redis: idle workers put off a look at a lease that ends",
        why="what a killed process had waits for up to five seconds more",
        file="stores/redis/look_ahead.lua",
        text="  first = math.min(first_score(q.run), first_score(q.later))",
        instead="  first = first_score(q.later)",
        killers=(
            f"{_STORE}/test_look_ahead.py::TestLookAhead::test_a_look_ahead_expects_the_end_of_a_lease",
        ),
    ),
    Mutant(
        name="redis: idle workers put off a look at what is due at one priority",
        why="a message of that priority waits for up to five seconds more",
        file="stores/redis/look_ahead.lua",
        text="  for level = 0, 9 do",
        instead="  for level = 0, 8 do",
        killers=(
            f"{_STORE}/test_look_ahead.py::TestLookAhead::test_a_look_ahead_sees_the_first_due_time_of_every_priority",
        ),
    ),
    Mutant(
        name="redis: idle workers put off a look at a pause that ends",
        why="a queue whose pause has ended stands still for up to five seconds",
        file="stores/redis/look_ahead.lua",
        text="      first = math.min(first, pause.till > 0 and pause.till or math.huge)\n",
        instead="",
        killers=(
            f"{_STORE}/test_look_ahead.py::TestLookAhead::test_a_look_ahead_expects_the_end_of_a_pause_and_nothing_before",
        ),
    ),
    Mutant(
        name="redis: a script goes by the client's clock",
        why="a process whose clock is off delivers early or late, and takes over what others still have",
        file="stores/redis/times.py",
        text="    now = clock.now()\n",
        instead="    now = clock.now() or datetime.now(UTC)\n",
        killers=(f"{_STORE}/test_clocks.py::TestServerClocks::test_what_is_due_is_due_by_the_servers_clock",),
    ),
    Mutant(
        name="redis: the driver tries again by itself",
        why="what it repeats may be done twice, and a server that is away is noticed late",
        file="stores/redis/connect.py",
        text='        "retry": Retry(NoBackoff(), 0),\n',
        instead='        "retry": Retry(NoBackoff(), 3),\n',
        killers=(f"{_STORE}/test_connections.py::test_the_driver_tries_nothing_again",),
    ),
    Mutant(
        name="redis: any certificate will do",
        why="who answers in the place of the server gets every message, and the password",
        file="stores/redis/connect.py",
        text="ConnectionPool.from_url(plain)",
        instead="ConnectionPool.from_url(\n"
        '            plain, **({"ssl_cert_reqs": "none", "ssl_check_hostname": False} if "rediss:" in plain else {})\n'
        "        )",
        killers=(f"{_STORE}/test_unencrypted.py::test_a_certificate_of_an_unknown_authority_is_refused",),
    ),
    Mutant(
        name="redis: a certificate of any host will do",
        why="who has a certificate of any host can answer in the place of the server, and gets the password",
        file="stores/redis/connect.py",
        text="ConnectionPool.from_url(plain)",
        instead='ConnectionPool.from_url(plain, **({"ssl_check_hostname": False} if "rediss:" in plain else {}))',
        killers=(f"{_STORE}/test_unencrypted.py::test_a_certificate_for_another_host_is_refused",),
    ),
    Mutant(
        name="redis: a publish that was perhaps stored counts as not stored",
        why="the caller publishes again, and the message is there twice",
        file="stores/redis/publishing.py",
        text="await run(call, lost=PublishUncertain)",
        instead="await run(call, lost=PublishUncertain.__mro__[1])",
        killers=(f"{_UNCERTAIN}[timer]", f"{_UNCERTAIN}[batch]"),
    ),
    Mutant(
        name="redis: a publish that was perhaps stored is sent once more with a new id",
        why="the message is there twice",
        file="stores/redis/publishing.py",
        text="        return [id_ for id_ in await self._stored(call, None, here=here) if id_ is not None]",
        instead="        try:\n            stored = await self._stored(call, None, here=here)\n"
        "        except PublishUncertain:\n"
        "            call = self.prepared(messages, None, ids.next(len(messages)), final=False)\n"
        "            stored = await self._stored(call, None, here=here)\n"
        "        return [id_ for id_ in stored if id_ is not None]",
        killers=(_UNCERTAIN,),
    ),
    Mutant(
        name="redis: nothing is looked for after listening was interrupted",
        why="what was published meanwhile waits for the next poll",
        file="stores/redis/listen.py",
        text="        for queue in fresh:\n            self.ring(queue)\n",
        instead="        fresh.clear()\n",
        killers=(
            f"{_STORE}/test_connections.py::"
            "test_a_lost_listening_connection_is_replaced_and_rings_without_a_warning",
        ),
    ),
    Mutant(
        name="redis: what was stored earlier need not be confirmed",
        why="a publish that no replica confirmed succeeds when it is repeated, and a failover loses its message",
        file="stores/redis/publishing.py",
        text="        if not call.then:\n",
        instead="        if not call.then or all(id_ is None for id_ in ids):\n",
        killers=(
            f"{_STORE}/test_server_requirements.py::"
            "test_a_publish_is_uncertain_again_until_a_replica_has_what_an_earlier_try_stored[skip]",
        ),
    ),
)
