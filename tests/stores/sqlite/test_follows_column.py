"""`follows` is right whatever is written, by us or by hand: a line is neither forgotten nor walked over."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing, suppress

import pytest

from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sqlite.check import Schema
from nightmail.stores.sqlite.queries import Queries

pytestmark = pytest.mark.sqlite

INSERT = """
    INSERT INTO nightmail_messages (
        id, queue, follows, priority, due_at, published_at, ordering_key, head_key, headers, body
    )
    VALUES (:id, :queue, :follows, 0, :due_at, 0, :key, :head, '{}', x'')
"""
# What the column says, and what it should say.
WRONG = """
    SELECT id
    FROM (
        SELECT
            id,
            follows,
            head_key,
            ordering_key,
            due_at,
            lag(due_at) OVER line AS due_before,
            lag(head_key) OVER line AS head_before
        FROM nightmail_messages
        WINDOW line AS (PARTITION BY queue, ordering_key ORDER BY id)
    )
    WHERE follows <> (
        ordering_key IS NOT NULL
        AND head_key IS NULL
        AND (coalesce(due_before <= due_at, 0) OR head_before IS NOT NULL)
    )
"""
STATEMENTS = (
    "UPDATE nightmail_messages SET due_at = :due_at WHERE id = :id",
    "UPDATE nightmail_messages SET head_key = ordering_key WHERE id = :id",
    "UPDATE nightmail_messages SET head_key = NULL WHERE id = :id",
    "UPDATE nightmail_messages SET head_key = NULL, ordering_key = :key WHERE id = :id",
    "UPDATE nightmail_messages SET queue = :queue WHERE id = :id",
    """
    UPDATE nightmail_messages
    SET queue = :queue, ordering_key = :key, head_key = :head, due_at = :due_at
    WHERE id = :id
    """,
    "UPDATE nightmail_messages SET due_at = :due_at WHERE queue = :queue AND ordering_key = :key",
    "DELETE FROM nightmail_messages WHERE id = :id",
    "DELETE FROM nightmail_messages WHERE queue = :queue AND head_key IS NOT NULL",
)


@pytest.mark.parametrize("seed", range(5))
def test_follows_is_right_whatever_is_written(seed: int) -> None:
    chance = random.Random(seed)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        Schema(TableNames(), Queries(TableNames())).migrate(connection)
        for _ in range(300):
            key = chance.choice(["a", "a", "b", None])
            values = {
                "id": chance.randrange(1, 25),
                "queue": chance.choice(["orders", "orders", "refunds"]),
                "follows": 0 if key is None else chance.randrange(2),
                "due_at": chance.randrange(4),
                "key": key,
                "head": chance.choice([key, None, None]),
            }
            text = chance.choice([INSERT] * len(STATEMENTS) + [*STATEMENTS])
            # A key has one holder, and an id one row.
            with suppress(sqlite3.IntegrityError):
                connection.execute(text, values)

            assert connection.execute(WRONG).fetchall() == [], (text, values)
