"""A row of faststream-outbox as a message of ours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from nightmail.moving.rows import as_message, quoted

DUE = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def row(**columns: Any) -> dict[str, Any]:
    return {
        "id": 17,
        "queue": "orders",
        "payload": b"{}",
        "headers": None,
        "due_at": DUE,
        "timer_id": None,
        **columns,
    }


def test_queue_body_due_time_and_timer_id_are_the_rows() -> None:
    message = as_message(row(queue="mail", payload=b"\x00\xff", timer_id="t-1"))

    assert (message.queue, message.body, message.due, message.timer_id) == ("mail", b"\x00\xff", DUE, "t-1")


def test_headers_stay_and_tell_which_row_it_was() -> None:
    message = as_message(row(headers='{"content-type": "text/plain", "correlation_id": "c", "tenant": "é"}'))

    assert message.headers == {
        "content-type": "text/plain",
        "correlation_id": "c",
        "tenant": "é",
        "faststream-outbox-id": "17",
    }


@pytest.mark.parametrize("headers", [None, "null", "{}"])
def test_a_row_without_headers_is_correlated_by_its_own_id(headers: str | None) -> None:
    assert as_message(row(headers=headers)).headers == {
        "correlation_id": "17",
        "faststream-outbox-id": "17",
    }


@pytest.mark.parametrize(
    "columns",
    [{"headers": "[1]"}, {"headers": '"text"'}, {"headers": '{"n": 1e999}'}, {"timer_id": ""}, {"queue": ""}],
    ids=lambda columns: next(iter(columns)),
)
def test_what_we_could_not_store_is_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"headers|timer_id|queue"):
        as_message(row(**columns))


@pytest.mark.parametrize(
    ("name", "sql"),
    [
        ("outbox", '"outbox"'),
        ("Mail Box", '"Mail Box"'),
        ("shop.outbox", '"shop"."outbox"'),
        ('x"; drop table y; --', '"x""; drop table y; --"'),
    ],
)
def test_any_name_of_a_table_is_quoted(name: str, sql: str) -> None:
    assert quoted(name) == sql


@pytest.mark.parametrize("name", ["", ".outbox", "shop.", "a\x00b"])
def test_what_is_no_name_of_a_table_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no table"):
        quoted(name)
