"""What SQLite reads for a claim follows the batch and not the backlog.

Costs are counted in instructions of SQLite's virtual machine, so they are the same on every run: each row that is
looked at costs a few, and none is spent on rows that an index leaves out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from nightmail.clock import StoreClock
from nightmail.message import Message
from nightmail.outcome import Done
from nightmail.store import Claimed, Settlement
from nightmail.stores._names import TableNames
from nightmail.stores.sqlite.check import Schema
from nightmail.stores.sqlite.claiming import Claiming, Wanted
from nightmail.stores.sqlite.leases import Leases
from nightmail.stores.sqlite.moments import StoreTime
from nightmail.stores.sqlite.publishing import Publishing
from nightmail.stores.sqlite.settling import Settling
from nightmail.stores.sqlite.steps import Queries, Steps, carry_out

pytestmark = pytest.mark.sqlite

T = TypeVar("T")
MANY = 100_000
HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)

# What runs for every publish, claim and settlement, with a caller or a worker waiting for it.
HOT = (
    "publish",
    "publish_batch",
    "bearer",
    "detach",
    "overwrite",
    "window",
    "open_window",
    "clear_windows",
    "levels",
    "available",
    "lease",
    "bodies",
    "upcoming",
    "recall",
    "held",
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
)


class Database:
    """A database in memory, and what is done to it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.sql = sql = Queries(TableNames())
        time = StoreTime(StoreClock())
        Schema(TableNames(), sql).migrate(connection)
        self._publishing = Publishing(sql, time)
        self._claiming = Claiming(sql, time)
        self._settling = Settling(sql, time, Leases(sql, time, keep_delivered=False))

    def plan(self, name: str) -> list[str]:
        statement = self.sql(name).statement
        values: dict[str, Any] = dict.fromkeys(statement.parameters)
        return [row[3] for row in self.connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", values)]

    def publish(self, messages: Iterable[Message]) -> None:
        carry_out(self.connection, self._publishing.publish_batch(list(messages)))

    def claim(self, limit: int) -> Claimed:
        return carry_out(self.connection, self._claiming.take(wanted(limit)))

    def claiming(self, limit: int = 10) -> Steps[Claimed]:
        return self._claiming.take(wanted(limit))

    def looking(self) -> Steps[Claimed | None]:
        return self._claiming.look(wanted(10))

    def settling(self, claimed: Claimed) -> Steps[Any]:
        return self._settling.settle([Settlement(delivery, Done()) for delivery in claimed.deliveries])

    def cost(self, steps: Steps[T]) -> int:
        """How many instructions these steps take; they are taken back."""
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        self.connection.execute("BEGIN")
        self.connection.set_progress_handler(count, 1)
        carry_out(self.connection, steps)
        self.connection.set_progress_handler(None, 0)
        self.connection.execute("ROLLBACK")
        return counted


@pytest.fixture
def database() -> Iterator[Database]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        yield Database(connection)


def wanted(limit: int) -> Wanted:
    return Wanted(("orders",), limit, LEASE, uuid4())


def messages(count: int, **options: Any) -> list[Message]:
    return [Message(queue="orders", body=b"hello", **options) for _ in range(count)]


@pytest.mark.parametrize("name", HOT)
def test_a_statement_that_somebody_waits_for_never_walks_through_a_table(
    database: Database, name: str
) -> None:
    # Lists that come or go as JSON are walked through, and that is all.
    lists = ("VIRTUAL TABLE", "(subquery")
    walked = [
        step
        for step in database.plan(name)
        if step.startswith("SCAN") and not any(kind in step for kind in lists)
    ]

    assert walked == []


@pytest.mark.parametrize("name", ["levels", "available", "lease", "bodies", "upcoming"])
def test_a_claim_sorts_nothing(database: Database, name: str) -> None:
    assert [step for step in database.plan(name) if "TEMP B-TREE" in step] == []


def test_what_is_available_is_found_along_the_index_up_to_now(database: Database) -> None:
    along = "SEARCH m USING INDEX nightmail_messages_due (queue=? AND priority=? AND due_at<?)"

    assert along in database.plan("available")


def test_a_claim_does_not_pay_for_messages_that_are_due_later(database: Database) -> None:
    database.publish(messages(20))
    database.publish([*messages(1, due=HOUR), *messages(1, due=HOUR, priority=7)])
    before = database.cost(database.claiming())
    database.publish(messages(MANY // 2, due=HOUR))
    database.publish(messages(MANY // 2, due=HOUR, priority=7))

    assert database.cost(database.claiming()) == before


def test_a_claim_does_not_pay_for_messages_behind_those_it_takes(database: Database) -> None:
    database.publish(messages(20))
    before = database.cost(database.claiming())
    database.publish(messages(MANY))

    assert database.cost(database.claiming()) == before


def test_a_look_that_finds_nothing_does_not_pay_for_messages_that_are_due_later(database: Database) -> None:
    database.publish(messages(1, due=HOUR))
    before = database.cost(database.looking())
    database.publish(messages(MANY, due=HOUR))

    assert database.cost(database.looking()) == before


def test_a_claim_that_is_not_full_does_not_pay_for_messages_that_are_due_later(database: Database) -> None:
    database.publish(messages(5))
    database.publish(messages(1, due=HOUR))
    before = database.cost(database.claiming())
    database.publish(messages(MANY, due=HOUR))

    assert database.cost(database.claiming()) == before


def test_a_claim_pays_little_for_messages_that_are_running(database: Database) -> None:
    database.publish(messages(1020))
    before = database.cost(database.claiming())
    database.claim(1000)

    # A worker has so many in hand at most. Each is passed by for less than it takes to claim one.
    assert database.cost(database.claiming()) < before + 1000 * 20


def test_a_claim_pays_little_for_followers_that_wait_for_their_turn(database: Database) -> None:
    database.publish(messages(1, ordering_key="busy"))
    database.claim(1)
    database.publish(messages(10))
    before = database.cost(database.claiming(20))
    database.publish(messages(1000, ordering_key="busy"))

    assert database.cost(database.claiming(20)) < before + 1000 * 60


def test_a_claim_of_more_costs_in_proportion(database: Database) -> None:
    database.publish(messages(1000))
    ten, hundred = database.cost(database.claiming(10)), database.cost(database.claiming(100))

    assert hundred < 10 * ten


def test_settling_does_not_pay_for_messages_that_stay(database: Database) -> None:
    database.publish(messages(10))
    claimed = database.claim(10)
    before = database.cost(database.settling(claimed))
    database.publish(messages(MANY // 2))
    database.publish(messages(MANY // 2, due=HOUR))

    assert database.cost(database.settling(claimed)) == before
