"""What SQLite reads for a claim, and for clearing away, follows the batch and not the backlog.

Costs are counted in instructions of SQLite's virtual machine, so they are the same on every run: each row that is
looked at costs a few, and none is spent on rows that an index leaves out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest

from nightmail.controls import MOST_AHEAD
from nightmail.limits import CLAIM_BYTES, MAX_BODY_BYTES
from nightmail.message import Message
from nightmail.outcome import Dead, Done, Outcome, Release, Retry
from nightmail.records import DeadFilter, DeadLetter
from nightmail.store import Claimed, Settlement
from nightmail.stores.shared.dead_groups import PAGE
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.shared.wanted import Wanted
from nightmail.stores.sql.verbs import Verb
from nightmail.stores.sqlite.check import Schema
from nightmail.stores.sqlite.claiming import Claims
from nightmail.stores.sqlite.controlling import Controlling
from nightmail.stores.sqlite.inspecting import Inspecting
from nightmail.stores.sqlite.letters import Letters
from nightmail.stores.sqlite.publishing import Publishing
from nightmail.stores.sqlite.queries import Queries, carry_out_on
from nightmail.stores.sqlite.redriving import Redriving
from nightmail.stores.sqlite.settling import Settling
from nightmail.stores.sqlite.sweeping import Sweeping
from nightmail.stores.sqlite.times import StoreTime, in_microseconds
from nightmail.testing.clock import ManualClock
from tests.counters.baseline import exactly, within

pytestmark = pytest.mark.sqlite

T = TypeVar("T")
MANY = 100_000
LONG = 200_000
HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)

# What runs for every publish, claim and settlement, with a caller or a worker waiting for it.
HOT = (
    "publish",
    "publish_batch",
    "owner",
    "detach",
    "overwrite",
    "window",
    "open_window",
    "clear_windows",
    "levels",
    "candidates",
    "lease",
    "lease_in_line",
    "bodies",
    "upcoming",
    "recall",
    "strays",
    "bury_unfit",
    "count_still_leased",
    "still_leased",
    "still_wanted",
    "extend",
    "retry",
    "postpone",
    "release",
    "bury",
    "keep",
    "remove",
    "cancel",
    "close_window",
    "reschedule",
    "peek_timer",
    "news",
    "candidates_dead",
    "lease_dead",
    "upcoming_dead",
    "recall_dead",
    "still_leased_dead",
    "extend_dead",
    "retry_dead",
    "postpone_dead",
    "release_dead",
    "give_up_dead",
    "remove_dead",
    "pause",
    "resume",
    "end_pauses",
    "renew_pause",
    "probe_again",
    "request_stop",
    "report",
    "sign_off",
)

COUNTED = (
    "find",
    "dead_errors_queue",
    "dead_errors_ids",
    "pauses_queue",
    "facts",
    "newest_letter",
    "delivered_at",
)
"""What an operator asks for. It may sort what it finds, but reads nothing else."""

# What an operator asks for, and what runs beside everything else: it must block nothing.
COLD = (
    "movable",
    "redrive",
    "dead_queue",
    "dead_ids",
    "read_dead",
    "purge",
    "purge_queue",
    "purge_ids",
    "sweepable",
    "sweep_delivered",
    "sweep_dead",
    "sweep_dedup",
)


BURY = """
    WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < :count)
    INSERT INTO nightmail_dead (
        message_id, queue, priority, due_at, attempts, deliveries, published_at, died_at, reason, headers, body
    )
    SELECT number, :queue, 0, :died_at, 1, 1, :died_at, :died_at, 'rejected', '{}', x''
    FROM numbers
"""


PILE_UP = """
    WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < :count)
    INSERT INTO nightmail_messages (queue, priority, due_at, published_at, ordering_key, headers, body)
    SELECT :queue, :priority, :due_at, :now, :ordering_key, '{}', x'68656c6c6f'
    FROM numbers
"""

COPY_THE_LAST = """
    WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < :count)
    INSERT INTO nightmail_messages (
        queue, follows, priority, due_at, published_at, ordering_key, head_key, headers, body
    )
    SELECT m.queue, m.follows, m.priority, m.due_at, m.published_at, m.ordering_key, m.head_key, m.headers, m.body
    FROM numbers, (SELECT * FROM nightmail_messages ORDER BY id DESC LIMIT 1) AS m
"""

INDEXES_AND_TRIGGERS = """
    SELECT type, name, sql FROM sqlite_master
    WHERE tbl_name = 'nightmail_messages' AND type IN ('index', 'trigger') AND sql IS NOT NULL
"""


class Database:
    """A database in memory, and what is done to it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.sql = sql = Queries(TableNames())
        # It stands still: on a slow machine a second may pass between two claims, and the next one looks further.
        self._time = time = StoreTime(ManualClock())
        Schema(TableNames(), sql).migrate(connection)
        self._claims = Claims(sql, time, MAX_BODY_BYTES)
        self._settling = Settling(
            sql, time, keep_delivered=False, handed_back=self._claims.look_from_the_start
        )
        self._letters = Letters(sql, time, MAX_BODY_BYTES)
        self._publishing = Publishing(sql, time, messages=self._settling, letters=self._letters)
        self.redriving = Redriving(sql, time)
        self.inspecting = Inspecting(sql, time)
        self.sweeping = Sweeping(sql, time)
        self.controlling = Controlling(sql, time)
        # The first look also looks for rows that no claim would come upon.
        carry_out_on(connection, self.looking())

    def plan(self, name: str) -> list[str]:
        statement = self.sql(name).statement
        values: dict[str, Any] = dict.fromkeys(statement.parameters)
        return [row[3] for row in self.connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", values)]

    def publish(self, messages: Iterable[Message]) -> None:
        carry_out_on(self.connection, self.publishing(messages))

    def publishing(self, messages: Iterable[Message]) -> Verb[Any]:
        return self._publishing.publish_batch(list(messages))

    def pile_up(self, count: int, *, due: timedelta = timedelta(0), **columns: Any) -> None:
        """So many messages more, as if they had been published one by one, which takes much longer."""
        now = self._time.now()
        values = {"queue": "orders", "priority": 0, "ordering_key": None, "count": count, **columns}
        self.connection.execute(PILE_UP, {"now": now, "due_at": now + in_microseconds(due), **values})

    def line_up(self, count: int, *, due: timedelta = timedelta(0)) -> None:
        """So many messages at the end of one line."""
        self.pile_up(count, due=due, ordering_key="busy")

    def copy_the_last(self, count: int) -> None:
        """So many more messages like the last one, at once: without indexes and triggers, which are put back."""
        set_aside = self.connection.execute(INDEXES_AND_TRIGGERS).fetchall()
        for kind, name, _ in set_aside:
            self.connection.execute(f"DROP {kind} {name}")
        self.connection.execute(COPY_THE_LAST, {"count": count})
        for *_, made_by in set_aside:
            self.connection.execute(made_by)

    def rows(self) -> list[tuple[Any, ...]]:
        """All messages, without the times at which they were published."""
        now = {"due_at": 0, "published_at": 0}
        found = self.connection.execute("SELECT * FROM nightmail_messages ORDER BY id")
        names = [name for name, *_ in found.description]
        return [tuple((dict(zip(names, row, strict=True)) | now).values()) for row in found]

    def claim(self, limit: int) -> Claimed:
        return carry_out_on(self.connection, self._claims.take(wanted(limit)))

    def claiming(self, limit: int = 10, queues: tuple[str, ...] = ("orders",)) -> Verb[Claimed]:
        return self._claims.take(wanted(limit, queues))

    def recalling(self, token: UUID) -> Verb[Any]:
        return self._settling.recall(("orders",), token)

    def looking(self, queues: tuple[str, ...] = ("orders",)) -> Verb[Claimed | None]:
        return self._claims.look(wanted(10, queues))

    def pause(self, queue: str, ordering_key: str | None = None) -> None:
        verb = self.controlling.pause(
            queue, ordering_key=ordering_key, until=None, by="ann", reason=None, automatic=False
        )
        carry_out_on(self.connection, verb)

    def settling(self, claimed: Claimed) -> Verb[Any]:
        return self._settling.settle([Settlement(delivery, Done()) for delivery in claimed.deliveries])

    def bury(self, count: int, *, queue: str = "orders") -> None:
        """So many new dead letters, an hour old."""
        died_at = self._time.now() - in_microseconds(HOUR)
        self.connection.execute(BURY, {"queue": queue, "died_at": died_at, "count": count})

    def bury_given_up(self, count: int) -> None:
        """So many new dead letters that died just now and were given up."""
        died_at = self._time.now()
        self.connection.execute(BURY, {"queue": "orders", "died_at": died_at, "count": count})
        self.connection.execute("UPDATE nightmail_dead SET due_at = NULL WHERE died_at = ?", (died_at,))

    def letters(self, which: DeadFilter, limit: int) -> list[DeadLetter]:
        return carry_out_on(
            self.connection, self.inspecting.dead(which, limit=limit, cursor=None, max_bytes=CLAIM_BYTES)
        )

    def claiming_letters(self, limit: int = 10) -> Verb[Claimed]:
        return self._letters.take(wanted(limit))

    def settling_letters(self, outcome: Outcome, limit: int) -> Verb[Any]:
        claimed = carry_out_on(self.connection, self.claiming_letters(limit))
        return self._letters.settle([Settlement(delivery, outcome) for delivery in claimed.deliveries])

    def cost(self, verb: Verb[T]) -> int:
        """How many instructions this verb takes; it is taken back."""
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        self.connection.execute("BEGIN")
        self.connection.set_progress_handler(count, 1)
        carry_out_on(self.connection, verb)
        self.connection.set_progress_handler(None, 0)
        self.connection.execute("ROLLBACK")
        return counted


@pytest.fixture
def database() -> Iterator[Database]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        yield Database(connection)


def wanted(limit: int, queues: tuple[str, ...] = ("orders",)) -> Wanted:
    return Wanted(queues, limit, LEASE, uuid4(), CLAIM_BYTES)


def messages(count: int, **options: Any) -> list[Message]:
    return [Message(queue="orders", body=b"hello", **options) for _ in range(count)]


@pytest.mark.parametrize("name", [*HOT, *COUNTED, *COLD])
def test_a_statement_that_a_caller_waits_for_never_walks_through_a_table(
    database: Database, name: str
) -> None:
    # Lists that come or go as JSON are walked through, and the names of the queues, and that is all.
    lists = ("VIRTUAL TABLE", "(subquery", "CONSTANT ROW", "SCAN queues")
    walked = [
        step
        for step in database.plan(name)
        if step.startswith("SCAN") and not any(kind in step for kind in lists)
    ]

    # Whether there is any pause: the first row is enough to know.
    assert walked == (["SCAN nightmail_controls"] if name == "levels" else [])


@pytest.mark.parametrize(
    "name",
    [
        "levels",
        "candidates",
        "lease",
        "lease_in_line",
        "bodies",
        "upcoming",
        "candidates_dead",
        "lease_dead",
        "upcoming_dead",
        *COLD,
    ],
)
def test_what_is_taken_or_cleared_away_is_not_sorted(database: Database, name: str) -> None:
    assert [step for step in database.plan(name) if "TEMP B-TREE" in step] == []


def test_what_is_available_is_found_along_the_index_up_to_now(database: Database) -> None:
    range_ = "(queue=? AND follows=? AND priority=? AND due_at>? AND due_at<?)"
    along = f"SEARCH m USING INDEX nightmail_messages_due {range_}"

    assert along in database.plan("candidates")


def test_a_claim_does_not_pay_for_messages_that_are_due_later(database: Database) -> None:
    database.publish(messages(20))
    database.publish([*messages(1, due=HOUR), *messages(1, due=HOUR, priority=7)])
    before = database.cost(database.claiming())
    database.pile_up(MANY // 2, due=HOUR)
    database.pile_up(MANY // 2, due=HOUR, priority=7)

    exactly("steps", database.cost(database.claiming()), before)


def test_a_claim_does_not_pay_for_messages_behind_those_it_takes(database: Database) -> None:
    database.publish(messages(20))
    before = database.cost(database.claiming())
    database.pile_up(MANY)

    exactly("steps", database.cost(database.claiming()), before)


def test_a_look_that_finds_nothing_does_not_pay_for_messages_that_are_due_later(database: Database) -> None:
    database.publish(messages(1, due=HOUR))
    before = database.cost(database.looking())
    database.pile_up(MANY, due=HOUR)

    exactly("steps", database.cost(database.looking()), before)


def test_a_claim_that_is_not_full_does_not_pay_for_messages_that_are_due_later(database: Database) -> None:
    database.publish(messages(5))
    database.pile_up(1, due=HOUR)
    database.cost(database.claiming())  # The first claim of a store knows less: it costs a little less.
    before = database.cost(database.claiming())
    database.pile_up(MANY, due=HOUR)

    exactly("steps", database.cost(database.claiming()), before)


def test_a_claim_pays_little_for_messages_that_are_running(database: Database) -> None:
    database.publish(messages(1020))
    before = database.cost(database.claiming())
    database.claim(1000)

    # A worker has so many in hand at most. Each is passed by for less than it takes to claim one.
    within("steps", database.cost(database.claiming()), before + 1000 * 20)


def test_a_long_line_behind_one_ordering_key_costs_those_beside_it_nothing() -> None:
    def costs(followers: int) -> dict[str, int]:
        """What it costs while so many stand behind the first, and others behind all of these."""
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            line = Database(connection)
            line.publish(messages(2, ordering_key="busy"))
            if followers > 1:
                line.copy_the_last(followers - 1)
            line.publish(messages(10))
            found = {"free: claim": line.cost(line.claiming(20)), "free: look": line.cost(line.looking())}
            first = line.claim(1)
            found |= {"held: claim": line.cost(line.claiming(20)), "held: look": line.cost(line.looking())}
            found["end of the first"] = line.cost(line.settling(first))
            others = line.claim(20)
            assert [each.ordering_key for each in (*first.deliveries, *others.deliveries)] == [
                "busy",
                *[None] * 10,
            ]
            assert not others.full
            return found

    few, many = costs(1), costs(LONG)

    # The tree of an index has become a level or two deeper, and that is all.
    for name, known in few.items():
        within("steps", many[name], known * 1.2, name)


def test_a_claim_does_not_pay_for_followers_that_are_due_later(database: Database) -> None:
    database.publish(messages(2, ordering_key="busy", due=HOUR))
    database.publish(messages(1, ordering_key="busy"))
    before = database.cost(database.claiming())
    database.line_up(MANY // 2, due=HOUR)
    database.line_up(MANY // 2)

    within("steps", database.cost(database.claiming()), before * 1.2)


def test_copies_of_a_follower_are_what_publishing_leaves() -> None:
    with (
        closing(sqlite3.connect(":memory:", isolation_level=None)) as one,
        closing(sqlite3.connect(":memory:", isolation_level=None)) as two,
    ):
        published, copied = Database(one), Database(two)
        published.publish(messages(6, ordering_key="busy"))
        copied.publish(messages(2, ordering_key="busy"))
        copied.copy_the_last(4)

        assert copied.rows() == published.rows()
        schemas = [each.execute(INDEXES_AND_TRIGGERS).fetchall() for each in (one, two)]
        assert sorted(schemas[0]) == sorted(schemas[1])
        assert len(schemas[0]) == 9


def test_messages_that_are_alone_in_their_lines_pay_only_for_finding_that_out(database: Database) -> None:
    costs: list[tuple[int, int, int]] = []
    for keys in ([None] * 100, [f"key {number}" for number in range(100)]):
        batch = [Message(queue="orders", body=b"hello", ordering_key=key) for key in keys]
        publishing = database.cost(database.publishing(batch))
        database.publish(batch)
        claiming = database.cost(database.claiming(100))
        claimed = database.claim(100)
        costs.append((publishing, claiming, database.cost(database.settling(claimed))))
        carry_out_on(database.connection, database.settling(claimed))
    publish, claim, settle = ((keyed - plain) / 100 for plain, keyed in zip(*costs, strict=True))

    # A trigger that begins to write only to find nothing to change takes twenty more, and far more time.
    within("steps", publish, 75)
    within("steps", claim, 130)
    within("steps", settle, 40)


def test_a_claim_costs_in_proportion_to_the_number_of_its_queues(database: Database) -> None:
    names = tuple(f"queue {number}" for number in range(2000))
    database.publish(Message(queue=queue, body=b"hello", priority=n % 3) for queue in names for n in range(3))

    costs = [database.cost(database.claiming(10_000, names[:count])) for count in (500, 1000, 2000)]

    within("steps", costs[1], costs[0] * 2.5)
    within("steps", costs[2], costs[1] * 2.5)


def test_handing_back_a_claim_does_not_pay_for_messages_that_wait(database: Database) -> None:
    database.publish(messages(10))
    token = database.claim(5).deliveries[0].token
    before = database.cost(database.recalling(token))
    database.pile_up(MANY)

    within("steps", database.cost(database.recalling(token)), before * 1.2)


def test_a_claim_of_more_costs_in_proportion(database: Database) -> None:
    database.publish(messages(1000))
    ten, hundred = database.cost(database.claiming(10)), database.cost(database.claiming(100))

    within("steps", hundred, 10 * ten)


def test_settling_does_not_pay_for_messages_that_stay(database: Database) -> None:
    database.publish(messages(10))
    claimed = database.claim(10)
    before = database.cost(database.settling(claimed))
    database.pile_up(MANY // 2)
    database.pile_up(MANY // 2, due=HOUR)

    exactly("steps", database.cost(database.settling(claimed)), before)


def test_messages_of_several_claims_are_settled_as_cheaply_as_those_of_one(database: Database) -> None:
    database.publish(messages(80))
    together = database.cost(database.settling(database.claim(40)))
    apart = [delivery for _ in range(4) for delivery in database.claim(10).deliveries]

    assert len({delivery.token for delivery in apart}) == 4
    # Each claim more is one more list to read.
    within("steps", database.cost(database.settling(Claimed(apart, None))), together * 1.03)


# ---------------------------------------------------------------------------------- pauses, and asking why


def test_a_claim_does_not_pay_for_what_waits_in_a_paused_queue_beside_it(database: Database) -> None:
    queues = ("orders", "refunds")
    database.publish(messages(5))
    database.pile_up(1, queue="refunds")
    database.pause("refunds")
    database.cost(
        database.claiming(10, queues)
    )  # The first claim of a store knows less: it costs a little less.
    claiming, looking = database.cost(database.claiming(10, queues)), database.cost(database.looking(queues))
    database.pile_up(MANY // 2, queue="refunds")

    exactly("steps", database.cost(database.claiming(10, queues)), claiming)
    exactly("steps", database.cost(database.looking(queues)), looking)


def test_a_claim_pays_little_for_each_paused_key_and_nothing_for_what_waits_behind_it(
    database: Database,
) -> None:
    keys = [f"key {number}" for number in range(200)]
    database.publish(messages(20))
    free = database.cost(database.claiming())
    for key in keys:
        database.pause("orders", key)
    database.publish(Message(queue="orders", body=b"hello", ordering_key=key, priority=1) for key in keys)
    database.publish(Message(queue="orders", body=b"hello", ordering_key=key, priority=1) for key in keys)
    beside = database.cost(database.claiming())
    for key in keys:
        database.pile_up(MANY // 2 // len(keys), ordering_key=key, priority=1)

    # The pause is read, and the first message of the key is passed by: for less than it takes to claim one.
    within("steps", beside, free + len(keys) * 75)
    within("steps", database.cost(database.claiming()), beside * 1.01)


def test_what_holds_a_message_back_does_not_cost_more_the_more_there_are(database: Database) -> None:
    database.pile_up(MANY // 10)
    database.publish(messages(2, ordering_key="busy"))
    ((last,),) = database.connection.execute("SELECT max(id) FROM nightmail_messages")
    before = database.cost(database.controlling.facts(last))
    database.pile_up(MANY)
    database.line_up(MANY)
    ((last,),) = database.connection.execute("SELECT max(id) FROM nightmail_messages")

    assert carry_out_on(database.connection, database.controlling.facts(last)).ahead == MOST_AHEAD
    within("steps", database.cost(database.controlling.facts(last)), before * 1.2)


def test_what_became_of_a_message_is_found_among_many_dead_letters(database: Database) -> None:
    database.bury(10)
    before = database.cost(database.controlling.facts(5))
    database.bury(MANY)

    # There are two dead letters of it now; the newest is wanted.
    within("steps", database.cost(database.controlling.facts(5)), before * 1.2)


def test_running_messages_are_found_among_many_that_wait(database: Database) -> None:
    database.publish(messages(20))
    database.claim(10)
    before = database.cost(database.controlling.leases(1000))
    database.pile_up(MANY)

    within("steps", database.cost(database.controlling.leases(1000)), before * 1.2)


@pytest.mark.parametrize("queue", [None, "orders"])
def test_what_waits_first_is_found_among_many_that_wait(database: Database, queue: str | None) -> None:
    def peeking() -> Verb[Any]:
        return database.inspecting.peek(queue, timer_id=None, due_before=None, limit=10, cursor=None)

    for name in ("orders", "others"):
        database.pile_up(20, queue=name)
        database.pile_up(20, queue=name, due=HOUR, ordering_key="key")
    before = database.cost(peeking())
    for name in ("orders", "others"):
        database.pile_up(MANY // 2, queue=name, due=HOUR)
        database.pile_up(MANY // 10, queue=name, due=HOUR, ordering_key="key")

    assert len(carry_out_on(database.connection, peeking())) == 10
    within("steps", database.cost(peeking()), before * 1.2)


def test_a_timer_is_found_among_many_messages_of_all_queues(database: Database) -> None:
    def peeking() -> Verb[Any]:
        return database.inspecting.peek(None, timer_id="a", due_before=None, limit=10, cursor=None)

    database.publish(messages(1))
    database.connection.execute("UPDATE nightmail_messages SET timer_id = 'a', timer_key = 'a'")
    before = database.cost(peeking())
    database.pile_up(MANY)

    assert len(carry_out_on(database.connection, peeking())) == 1
    within("steps", database.cost(peeking()), before * 1.2)


def test_messages_are_counted_in_an_index_and_rows_are_not_looked_up_one_by_one(database: Database) -> None:
    plan = database.plan("stats")

    # From end to end, twice: in the index of which nothing else is read, and in the order of the table.
    assert "SCAN nightmail_messages USING COVERING INDEX nightmail_messages_due" in plan
    assert "SCAN nightmail_messages" in plan
    assert [step for step in plan if "USING INDEX" in step] == [
        "SEARCH m USING INDEX nightmail_messages_due (queue=? AND follows=? AND priority=? AND due_at<?)"
    ]


# ----------------------------------------------------------------------------------------------- dead letters


@pytest.mark.parametrize("which", [DeadFilter(), DeadFilter(queue="orders")])
def test_a_page_of_letters_does_not_pay_for_the_pages_before_it(
    database: Database, which: DeadFilter
) -> None:
    def page(cursor: int) -> Verb[Any]:
        return database.inspecting.dead(which, limit=10, cursor=cursor, max_bytes=CLAIM_BYTES)

    database.bury(30)
    before = database.cost(page(20))
    database.bury(MANY)

    exactly("steps", database.cost(page(20)), before)


def test_counting_letters_by_cause_costs_in_proportion(database: Database) -> None:
    def counting() -> Verb[Any]:
        return database.inspecting.summarize_dead(DeadFilter(), limit=1)

    database.bury(PAGE)
    one = database.cost(counting())
    database.bury(3 * PAGE)

    within("steps", database.cost(counting()), one * 4.2)


def test_letters_that_may_be_taken_are_found_along_the_index_up_to_now(database: Database) -> None:
    along = "SEARCH nightmail_dead USING INDEX nightmail_dead_due (queue=? AND due_at<?)"

    assert database.plan("candidates_dead") == [along]


@pytest.mark.parametrize("limit", [10, 50])
def test_a_claim_of_letters_does_not_pay_for_those_that_were_given_up(database: Database, limit: int) -> None:
    database.bury(20)
    database.bury_given_up(1)
    before = database.cost(database.claiming_letters(limit))
    database.bury_given_up(MANY)

    exactly("steps", database.cost(database.claiming_letters(limit)), before)


def test_a_claim_of_letters_does_not_pay_for_those_behind_what_it_takes(database: Database) -> None:
    database.bury(20)
    before = database.cost(database.claiming_letters())
    database.bury(MANY)
    database.bury(MANY, queue="refunds")

    exactly("steps", database.cost(database.claiming_letters()), before)


@pytest.mark.parametrize("outcome", [Done(), Retry(), Release(), Dead("given up")], ids=repr)
def test_settling_letters_does_not_pay_for_those_that_stay(database: Database, outcome: Outcome) -> None:
    database.bury(100)
    few = database.cost(database.settling_letters(outcome, 10))
    database.bury(MANY)

    # The tree of an index has become a level or two deeper, and that is all.
    within("steps", database.cost(database.settling_letters(outcome, 10)), few * 1.2)


def test_redriving_does_not_pay_for_letters_and_messages_that_stay(database: Database) -> None:
    database.bury(10)
    letters = database.letters(DeadFilter(), 10)
    before = database.cost(database.redriving.redrive(letters, to=None, keep_timer_ids=True))
    database.bury(MANY)
    database.pile_up(MANY, due=HOUR)

    again = database.cost(database.redriving.redrive(letters, to=None, keep_timer_ids=True))
    within("steps", again, before * 1.2)


@pytest.mark.parametrize(
    "which",
    [DeadFilter(), DeadFilter(older_than=HOUR / 2), DeadFilter(queue="orders"), DeadFilter(ids=(1, 2, 3))],
    ids=["all", "by age", "by queue", "by id"],
)
def test_purging_does_not_pay_for_letters_that_stay(database: Database, which: DeadFilter) -> None:
    database.bury(10)
    before = database.cost(database.sweeping.purge(which, limit=10))
    database.bury(MANY, queue="refunds")
    database.bury_given_up(MANY)

    within("steps", database.cost(database.sweeping.purge(which, limit=10)), before * 1.2)


def test_sweeping_does_not_pay_for_what_is_younger(database: Database) -> None:
    database.bury(10)
    before = database.cost(database.sweeping.sweep(older_than=HOUR / 2, limit=100))
    in_vain = database.cost(database.sweeping.is_clean(HOUR * 2))
    database.bury_given_up(MANY)

    within("steps", database.cost(database.sweeping.sweep(older_than=HOUR / 2, limit=100)), before * 1.2)
    exactly("steps", database.cost(database.sweeping.is_clean(HOUR * 2)), in_vain)
