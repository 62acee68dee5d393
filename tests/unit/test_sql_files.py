"""Statements from files: named, with our tables' names and, where a driver counts, numbered parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightmail.stores.postgres import PostgresStore
from nightmail.stores.shared.table_names import TABLES, TableNames
from nightmail.stores.sql.statements import Statement, load, load_script
from tests.unit.support import brisk

QUERIES = """\
What comes before the first name belongs to no statement.

-- name: claim
-- Lease what is due: this line and the next are for people.
-- :limit is not a parameter here.
select id, body::text
  from nightmail_messages m
  -- a remark among the lines, with a :remark
  join nightmail_dead d on d.queue = :queue and m.queue = :queue
 where m.due_at <= coalesce(:now, now()) and body = ':not_one'::text
 limit :limit;

-- name: purge
delete from nightmail_dead where id = :id;
"""

SCHEMA = """\
create table nightmail_messages (id bigint primary key);
create index nightmail_messages_due on nightmail_messages (id);
insert into nightmail_meta values (1);
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with these files in it."""
    folder = tmp_path / "some_store"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "queries.sql").write_text(QUERIES, "utf-8")
    (folder / "schema.sql").write_text(SCHEMA, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "some_store"
    sys.modules.pop("some_store", None)


def test_statements_are_found_by_name(package: str) -> None:
    statements = load(package, "queries.sql", TableNames(), numbered=False)

    assert list(statements) == ["claim", "purge"]
    assert statements["purge"] == Statement("purge", 'delete from "nightmail_dead" where id = :id', ("id",))


def test_a_file_is_read_once_and_each_store_has_its_statements_to_itself(package: str) -> None:
    first = load(package, "queries.sql", TableNames("kept"), numbered=False)
    purge = first.pop("purge")

    second = load(package, "queries.sql", TableNames("kept"), numbered=False)

    assert list(second) == ["claim", "purge"]
    assert second["purge"] is purge
    assert load(package, "queries.sql", TableNames("other"), numbered=False)["purge"] != purge
    assert load(package, "queries.sql", TableNames("kept"), numbered=True)["purge"] != purge


def test_parameters_are_numbered_in_the_order_of_their_first_use(package: str) -> None:
    claim = load(package, "queries.sql", TableNames(), numbered=True)["claim"]

    assert claim.parameters[:2] == ("queue", "now")
    assert "d.queue = $1 and m.queue = $1" in claim.text
    assert "coalesce($2, now())" in claim.text
    assert "body::text" in claim.text


def test_arguments_come_in_the_order_of_the_numbers() -> None:
    statement = Statement("x", "select $1, $2", ("queue", "limit"))

    assert statement.arguments({"limit": 5, "queue": "mail", "unused": 1}) == ("mail", 5)


def test_a_missing_argument_is_an_error_and_not_a_null() -> None:
    statement = Statement("x", "select $1, $2", ("queue", "limit"))

    with pytest.raises(KeyError, match="limit"):
        statement.arguments({"queue": "mail"})


def test_lines_for_people_are_left_out(package: str) -> None:
    claim = load(package, "queries.sql", TableNames(), numbered=False)["claim"]

    assert "--" not in claim.text
    assert "remark" not in claim.parameters
    assert claim.text.startswith("select id")
    assert claim.text.endswith("limit :limit")


def test_tables_are_renamed_and_quoted(package: str) -> None:
    names = TableNames("shop_outbox", "mailing")
    claim = load(package, "queries.sql", names, numbered=False)["claim"]

    assert 'from "mailing"."shop_outbox_messages" m' in claim.text
    assert 'join "mailing"."shop_outbox_dead" d' in claim.text
    assert "nightmail" not in claim.text


def test_a_script_is_taken_whole_and_its_indexes_are_not_qualified(package: str) -> None:
    script = load_script(package, "schema.sql", TableNames("box", "mailing"))

    assert script == (
        'create table "mailing"."box_messages" (id bigint primary key);\n'
        'create index "box_messages_due" on "mailing"."box_messages" (id);\n'
        'insert into "mailing"."box_meta" values (1);\n'
    )


def test_by_default_tables_have_our_name_and_no_schema() -> None:
    names = TableNames.parse(None)

    assert names == TableNames("nightmail", None)
    assert names.quoted("messages") == '"nightmail_messages"'


@pytest.mark.parametrize(
    ("text", "prefix", "schema"),
    [("outbox", "outbox", None), ("mailing.outbox", "outbox", "mailing"), ("_x.y9_", "y9_", "_x")],
)
def test_names_are_read_from_text(text: str, prefix: str, schema: str | None) -> None:
    assert TableNames.parse(text) == TableNames(prefix, schema)


@pytest.mark.parametrize(
    "text",
    ["", "Outbox", "out box", "9box", "a.b.c", 'x"; drop table users; --', "a" * 41, "x.", "ключ", "x\n"],
)
def test_what_cannot_name_tables_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot name our tables"):
        TableNames.parse(text)


def test_tables_are_qualified_and_their_indexes_are_not() -> None:
    names = TableNames("box", "mailing")

    assert {names.quoted(table) for table in TABLES} == {f'"mailing"."box_{table}"' for table in TABLES}
    assert names.quoted("messages_due") == '"box_messages_due"'


@brisk
@given(st.text())
def test_no_text_ever_gets_past_the_quotes(text: str) -> None:
    try:
        names = TableNames.parse(text)
    except ValueError:
        return
    quoted = names.quoted("messages")

    assert quoted.count('"') == (4 if names.schema else 2)
    assert set(quoted) <= set('abcdefghijklmnopqrstuvwxyz0123456789_."')


def test_no_statement_is_too_long_for_the_driver_to_keep_it_prepared() -> None:
    """asyncpg prepares what has more than 15 KB each time that it is run: ten times the cost of a claim."""
    store = PostgresStore("postgresql://localhost/shop", tables=f"{'s' * 40}.{'p' * 40}")

    lengths = {name: len(statement.text) for name, statement in store._statements.items()}

    assert max(lengths.values()) < 15 * 1024, lengths
