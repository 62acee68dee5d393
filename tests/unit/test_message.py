"""Messages check themselves when built: nothing wrong is ever half written."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightmail.message import (
    Due,
    Message,
    check_due,
    check_name,
    decode_headers,
    differ_in_bodies_only,
    encode_headers,
)
from tests.unit.support import brisk, delivery

SECOND = timedelta(seconds=1)


def message(**fields: Any) -> Message:
    """A message with these fields."""
    return Message(**{"queue": "mail", "body": b""} | fields)


def test_a_message_needs_a_queue_and_a_body_and_nothing_else() -> None:
    plain = message(body=b"hello")

    assert (plain.queue, plain.body, plain.encoded_headers) == ("mail", b"hello", "{}")
    assert (plain.due, plain.timer_id, plain.on_conflict, plain.priority) == (None, None, "skip", 0)
    assert (plain.dedup_for, plain.expires_in, plain.ordering_key) == (None, None, None)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"queue": ""}, "queue must not be empty"),
        ({"queue": "q" * 256}, "queue must be at most 255 characters, not 256"),
        ({"queue": "a\x00b"}, "queue must not contain NUL"),
        ({"queue": "a\ud800"}, "queue must not contain lone surrogates"),
        ({"timer_id": ""}, "timer_id must not be empty"),
        ({"timer_id": "t" * 256}, "timer_id must be at most 255 characters, not 256"),
        ({"ordering_key": ""}, "ordering_key must not be empty"),
        ({"priority": 10}, "priority must be 0 to 9"),
        ({"priority": -1}, "priority must be 0 to 9"),
        ({"on_conflict": "ignore", "timer_id": "t"}, "on_conflict must be one of skip, replace"),
        ({"on_conflict": "replace"}, "on_conflict='replace' needs a timer_id"),
        ({"dedup_for": SECOND}, "dedup_for needs a timer_id"),
        (
            {"dedup_for": SECOND, "timer_id": "t", "on_conflict": "replace"},
            "dedup_for goes with on_conflict 'skip' or 'raise', not 'replace'",
        ),
        ({"dedup_for": timedelta(0), "timer_id": "t"}, "dedup_for must be positive"),
        ({"expires_in": timedelta(0)}, "expires_in must be positive"),
        ({"expires_in": SECOND, "due": SECOND}, "would expire .* before it is due"),
        ({"due": datetime(2030, 1, 1)}, "due must be an aware datetime"),  # noqa: DTZ001 - that is the point
        ({"headers": {"a": {1, 2}}}, "headers must be JSON: a TypeError"),
        ({"headers": {"a": math.nan}}, "headers must be JSON: a ValueError"),
    ],
)
def test_what_cannot_be_stored_is_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        message(**fields)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"queue": 5}, "queue must be a str, not int"),
        ({"body": "text"}, "body must be bytes, not str"),
        ({"body": bytearray(b"x")}, "body must be bytes, not bytearray"),
        ({"timer_id": 7}, "timer_id must be a str, not int"),
        ({"priority": True}, "priority must be a whole number, not bool"),
        ({"priority": 1.0}, "priority must be a whole number, not float"),
        ({"due": 5}, "due must be a datetime, a timedelta or None, not int"),
        ({"headers": {5: "x"}}, "header names must be str, not int"),
    ],
)
def test_what_is_of_another_kind_is_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(TypeError, match=error):
        message(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "q" * 255},
        {"queue": "почта 📬"},
        {"timer_id": "t" * 255},
        {"priority": 9},
        {"timer_id": "t", "on_conflict": "raise", "dedup_for": SECOND},
        {"expires_in": timedelta(seconds=2), "due": SECOND},
        {"due": timedelta(seconds=-5)},
        {"due": datetime(1999, 1, 1, tzinfo=UTC)},
        {"due": datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45)))},
    ],
)
def test_what_can_be_stored_is_accepted(fields: dict[str, Any]) -> None:
    assert message(**fields).body == b""


def test_the_value_of_a_header_that_cannot_be_encoded_stays_out_of_the_error() -> None:
    class Secret:
        def __repr__(self) -> str:
            return "hunter2"

    with pytest.raises(ValueError, match="headers must be JSON") as caught:
        message(headers={"password": Secret()})

    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_headers_nested_without_end_are_refused() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless

    with pytest.raises(ValueError, match="headers must be JSON"):
        message(headers=endless)


def test_body_headers_and_token_are_not_shown() -> None:
    shown = repr(message(body=b"secret", headers={"password": "hunter2"}))
    claimed = delivery(body=b"secret", encoded_headers='{"password":"hunter2"}')

    for text in (shown, repr(claimed)):
        assert "secret" not in text
        assert "hunter2" not in text
    assert str(claimed.token) not in repr(claimed)


def test_the_first_run_is_attempt_one() -> None:
    assert delivery(attempts=0).attempt == 1
    assert delivery(attempts=4).attempt == 5


def test_two_deliveries_of_one_message_are_two() -> None:
    first, second = delivery(id=1), delivery(id=1)

    assert first != second
    assert len({first, second}) == 2


def test_headers_are_decoded_again_each_time() -> None:
    claimed = delivery(encoded_headers='{"a":[1]}')

    claimed.headers["a"].append(2)

    assert claimed.headers == {"a": [1]}


@pytest.mark.parametrize("text", ["[]", '"a"', "null", "1", "{", ""])
def test_headers_that_another_broke_are_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own messages are not ours to pin
        _ = delivery(encoded_headers=text).headers


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=10,
)


@brisk
@given(st.dictionaries(st.text(), json_values, max_size=6))
def test_headers_come_back_as_they_were(headers: dict[str, Any]) -> None:
    encoded = encode_headers(headers)

    assert encoded.isascii()
    assert "\x00" not in encoded
    assert decode_headers(encoded) == headers


@brisk
@given(st.text())
def test_every_name_that_is_accepted_can_be_kept_by_every_store(name: str) -> None:
    try:
        check_name("timer_id", name)
    except ValueError:
        assert not name or len(name) > 255 or "\x00" in name or _has_surrogate(name)
    else:
        assert 1 <= len(name) <= 255
        assert "\x00" not in name
        assert name.encode().decode() == name


@brisk
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=255))
def test_every_name_of_whole_characters_is_accepted(name: str) -> None:
    check_name("timer_id", name)


def _has_surrogate(text: str) -> bool:
    return any(0xD800 <= ord(character) <= 0xDFFF for character in text)


@brisk
@given(
    st.datetimes(
        max_value=datetime(2200, 1, 1),  # noqa: DTZ001 - Hypothesis adds the time zone itself
        timezones=st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m))),
    )
)
def test_every_aware_moment_may_be_a_due_time(moment: datetime) -> None:
    check_due(moment)


def test_empty_headers_cost_nothing_to_read() -> None:
    assert decode_headers("{}") == {}
    assert json.loads(encode_headers({})) == {}


@pytest.mark.parametrize(
    "due", [timedelta(seconds=10**12), timedelta.max, datetime(9999, 12, 31, tzinfo=UTC)], ids=repr
)
def test_a_due_time_centuries_ahead_is_refused(due: Due) -> None:
    with pytest.raises(ValueError, match="200 years ahead"):
        Message(queue="orders", body=b"", due=due)


def test_a_message_with_another_body_is_like_one_that_was_built_with_it() -> None:
    fields: dict[str, Any] = {
        "queue": "q",
        "headers": {"a": "1"},
        "due": timedelta(seconds=5),
        "expires_in": timedelta(seconds=9),
        "ordering_key": "k",
        "priority": 3,
    }
    first = Message(body=b"one", **fields)

    other = first.with_body(b"two")

    assert other == Message(body=b"two", **fields)
    assert other.encoded_headers == first.encoded_headers
    assert first.body == b"one"


def test_another_body_must_be_bytes_too() -> None:
    with pytest.raises(TypeError, match="body must be bytes, not str"):
        Message(queue="q", body=b"").with_body("text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        {"queue": "r"},
        {"headers": {"a": "2"}},
        {"due": timedelta(seconds=1)},
        {"expires_in": timedelta(seconds=9)},
        {"ordering_key": "k"},
        {"priority": 1},
    ],
)
def test_messages_that_differ_in_more_than_their_bodies_are_told_apart(other: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"queue": "q", "headers": {"a": "1"}}
    first = Message(body=b"one", **plain)

    assert differ_in_bodies_only([first, Message(body=b"two", **plain)])
    assert not differ_in_bodies_only([first, Message(body=b"one", **{**plain, **other})])
