"""Headers that begin with `nightmail-` are ours: publishers cannot give them, and what is stored is read with care."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from nightmail.message import MAX_HEADERS_BYTES, Message
from nightmail.records import DeadLetter
from nightmail.stores.shared.provenance import redriven_headers

WHEN = datetime(2030, 1, 1, tzinfo=UTC)


def letter(encoded_headers: str) -> DeadLetter:
    return DeadLetter(
        id=7,
        message_id=3,
        queue="orders",
        reason="rejected",
        error=None,
        timer_id=None,
        ordering_key=None,
        priority=0,
        attempts=1,
        deliveries=1,
        published_at=WHEN,
        first_attempt_at=None,
        last_attempt_at=None,
        died_at=WHEN,
        body=b"",
        encoded_headers=encoded_headers,
    )


@pytest.mark.parametrize("name", ["nightmail-redriven", "nightmail-anything", "Nightmail-Died-In"])
def test_a_publisher_cannot_give_a_header_of_ours(name: str) -> None:
    message = Message(queue="orders", body=b"", headers={name: "forged", "mine": "kept"})

    assert json.loads(message.encoded_headers) == {"mine": "kept"}


def test_a_relay_may_tell_the_id_that_a_message_had() -> None:
    message = Message(queue="orders", body=b"", headers={"nightmail-message-id": "orders:1"})

    assert json.loads(message.encoded_headers) == {"nightmail-message-id": "orders:1"}


@pytest.mark.parametrize(
    "forged", ["9" * 5000, "-1", "", "one", "\u0663", 5, None, ["9"], {"9": 9}, True], ids=repr
)
def test_whatever_was_forged_a_letter_can_go_back(forged: object) -> None:
    stored = json.dumps({"nightmail-redriven": forged, "mine": "kept"})

    headers = json.loads(redriven_headers(letter(stored)))

    assert headers["nightmail-redriven"] == "1"
    assert headers["nightmail-dead-letter"] == "7"
    assert headers["mine"] == "kept"


def test_how_often_a_letter_went_back_is_counted() -> None:
    once = redriven_headers(letter("{}"))

    assert json.loads(redriven_headers(letter(once)))["nightmail-redriven"] == "2"


def test_the_largest_headers_do_not_keep_a_letter_from_going_back() -> None:
    stored = json.dumps({"k": "v" * (MAX_HEADERS_BYTES - 10)})

    assert json.loads(redriven_headers(letter(stored)))["nightmail-redriven"] == "1"


@pytest.mark.parametrize(
    "stored",
    ['{"k": NaN}', '{"k": 1e999}', '{"k": %s}' % ("9" * 5000), "{", "[]", "[" * 100_000],
    ids=lambda it: it[:9],
)
def test_headers_that_cannot_be_written_again_stay_as_they_are(stored: str) -> None:
    assert redriven_headers(letter(stored)) == stored
