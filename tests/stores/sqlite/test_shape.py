"""Which tables count as the same, though they were written in different ways."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from nightmail.stores.sqlite.shape import definitions

pytestmark = pytest.mark.sqlite

OURS = """
CREATE TABLE IF NOT EXISTS "t" (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL CHECK (typeof(queue) = 'text'),
    n INTEGER NOT NULL DEFAULT 0 CHECK (n IN (0, 1)),
    CHECK (n = 0 OR length(queue) > 0)
)
"""


def shape(statement: str) -> dict[str, str]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(statement)
        return {name: text for name, text in definitions(connection).items() if name == "table t"}


def test_order_and_names_of_checks_and_clauses_do_not_matter() -> None:
    theirs = """
    CREATE TABLE t (
        id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
        queue TEXT NOT NULL,
        n INTEGER DEFAULT 0 NOT NULL,
        CONSTRAINT t_either CHECK (n = 0 OR length(queue) > 0),
        CONSTRAINT t_n CHECK (n IN (0, 1)),
        CONSTRAINT t_queue CHECK (typeof(queue) = 'text')
    )
    """

    assert shape(theirs) == shape(OURS)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param("CHECK (n IN (0, 1))", "", id="a check less"),
        pytest.param("IN (0, 1)", "IN (0, 2)", id="another check"),
        pytest.param("queue TEXT", "queue TEXT COLLATE NOCASE", id="another collation"),
        pytest.param("queue TEXT", "queue BLOB", id="another type"),
        pytest.param("queue TEXT NOT NULL", "queue TEXT", id="may be null"),
        pytest.param("queue TEXT", "queue TEXT UNIQUE", id="unique"),
        pytest.param("DEFAULT 0", "DEFAULT 1", id="another default"),
        pytest.param(" AUTOINCREMENT", "", id="ids that are used again"),
        pytest.param("CHECK (n = 0", "colour TEXT, CHECK (n = 0", id="a column more"),
    ],
)
def test_everything_else_does(ours: str, theirs: str) -> None:
    assert ours in OURS
    assert shape(OURS.replace(ours, theirs)) != shape(OURS)


@pytest.mark.parametrize(
    "other",
    [
        "CREATE TABLE t (a TEXT NOT NULL, b TEXT NOT NULL, PRIMARY KEY (b, a)) WITHOUT ROWID",
        "CREATE TABLE t (a TEXT NOT NULL, b TEXT NOT NULL, PRIMARY KEY (a, b))",
    ],
)
def test_the_order_of_a_key_and_the_kind_of_table_matter(other: str) -> None:
    table = "CREATE TABLE t (a TEXT NOT NULL, b TEXT NOT NULL, PRIMARY KEY (a, b)) WITHOUT ROWID"

    assert shape(other) != shape(table)
