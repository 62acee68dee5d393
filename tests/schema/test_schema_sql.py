"""What is read from a `schema.sql`."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from nightmail.stores.sql.schema import Column, Index, read_schema


@pytest.mark.parametrize("store", ["postgres", "mysql", "sqlite"])
def test_nothing_is_passed_over(store: str) -> None:
    text = resources.files("nightmail.stores").joinpath(store, "schema.sql").read_text("utf-8").lower()
    text = re.sub(r"--.*", "", text)

    tables = read_schema(store)

    assert len(tables) == len(re.findall(r"^create table", text, re.MULTILINE))
    named = sum(len(table.indexes) + len(table.checks) for table in tables)
    declared = r"^create (unique )?index|^\s+(unique )?key|^\s+constraint"
    assert named == len(re.findall(declared, text, re.MULTILINE))
    assert all(table.primary_key for table in tables)


@pytest.mark.parametrize(
    ("store", "column"),
    [
        ("postgres", Column("id", "bigint", required=True, numbered="identity")),
        ("postgres", Column("timer_key", "text", collation='"C"')),
        ("mysql", Column("id", "bigint", required=True, numbered="auto_increment")),
        ("mysql", Column("parked", "tinyint", required=True, default="0")),
        ("mysql", Column("queue_head", "varbinary(2041)", computed="concat(queue, x'00', head_key)")),
        ("mysql", Column("headers", "longtext", required=True, collation="utf8mb4_bin")),
        ("sqlite", Column("id", "INTEGER", required=True, numbered="AUTOINCREMENT")),
        ("sqlite", Column("follows", "INTEGER", required=True, default="0", check="follows IN (0, 1)")),
    ],
)
def test_a_column_is_read_with_all_its_clauses(store: str, column: Column) -> None:
    (messages,) = (table for table in read_schema(store) if table.name == "messages")

    assert column in messages.columns


@pytest.mark.parametrize(
    ("store", "index"),
    [
        ("postgres", Index("head", ("queue", "head_key"), unique=True, where="head_key is not null")),
        (
            "postgres",
            Index(
                "line",
                ("queue", "ordering_key", "((id + 0))"),
                unique=False,
                where="ordering_key is not null",
            ),
        ),
        ("mysql", Index("timer", ("queue_timer",), unique=True)),
        (
            "sqlite",
            Index("messages_line", ("queue", "ordering_key", "id"), False, "ordering_key IS NOT NULL"),
        ),
    ],
)
def test_an_index_is_read_whole(store: str, index: Index) -> None:
    (messages,) = (table for table in read_schema(store) if table.name == "messages")

    assert index in messages.indexes
