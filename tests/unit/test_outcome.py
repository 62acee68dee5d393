"""Outcomes, and text that every store can keep."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightmail.outcome import (
    ERROR_TEXT_LIMIT,
    REASON_LIMIT,
    Dead,
    Postpone,
    Reason,
    Retry,
    storable_text,
)
from tests.unit.support import brisk


def test_a_retry_in_the_past_is_one_now() -> None:
    assert Retry(timedelta(seconds=-5)) == Retry(timedelta(0)) == Retry()


def test_a_postponement_is_never_shorter_than_a_tenth_of_a_second() -> None:
    assert Postpone(timedelta(0)).after == timedelta(milliseconds=100)
    assert Postpone(timedelta(seconds=-1)).after == timedelta(milliseconds=100)
    assert Postpone(timedelta(milliseconds=101)).after == timedelta(milliseconds=101)


def test_a_dead_letter_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="a dead letter needs a reason"):
        Dead("")


def test_our_reasons_are_plain_words() -> None:
    assert {reason.value for reason in Reason} == {
        "rejected",
        "retries_exhausted",
        "max_deliveries",
        "undecodable",
        "policy_error",
        "expired",
        "unreadable",
        "stopped",
        "too_large",
    }
    assert Dead(Reason.EXPIRED) == Dead("expired")


def test_reason_and_error_are_made_storable() -> None:
    dead = Dead("no\x00reason" * 100, "bad \ud800" + "x" * 10_000)

    assert len(dead.reason) == REASON_LIMIT
    assert dead.error is not None
    assert len(dead.error) == ERROR_TEXT_LIMIT
    assert dead.error.startswith("bad \\ud800xxx")
    assert dead.error.endswith("…[truncated]")


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("plain", "plain"),
        ("", ""),
        ("a\x00b", "a\\x00b"),
        ("a\udfffb", "a\\udfffb"),
        ("naïve 📬", "naïve 📬"),
        ("x" * 20, "x" * 20),
        ("x" * 21, "x" * 8 + "…[truncated]"),
    ],
)
def test_text_is_kept_as_far_as_it_can_be(text: str, stored: str) -> None:
    assert storable_text(text, 20) == stored


@brisk
@given(text=st.text(st.characters()), limit=st.integers(min_value=12, max_value=100))
def test_whatever_the_text_the_result_can_be_stored(text: str, limit: int) -> None:
    stored = storable_text(text, limit)

    assert len(stored) <= limit
    assert "\x00" not in stored
    assert stored.encode().decode() == stored


@brisk
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=50))
def test_text_that_can_be_stored_is_left_alone(text: str) -> None:
    assert storable_text(text, 50) == text
