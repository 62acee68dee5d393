"""Messages that are made to hurt: each ends by itself, and those beside it are handled."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from nightmail import Message, NoRetry, OutboxBroker
from nightmail.describing import describe, one_line
from nightmail.outcome import Dead, Done
from nightmail.records import fingerprint
from nightmail.stores import open_store
from tests.broker.support import Heard, started

HOSTILE = {
    "nested without end": b"[" * 200_000,
    "nested and closed": b"[" * 200_000 + b"]" * 200_000,
    "objects without end": b'{"a":' * 100_000,
    "a number without end": b"9" * 100_000,
    "an exponent": b"1e999999999",
    "no number": b"NaN",
    "one name many times": b"{" + b",".join([b'"a":1'] * 50_000) + b"}",
    "half a character": b'"\\ud800"',
    "no text": b"\xff\xfe\x00",
    "nothing": b"",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_body_ends_by_itself_and_its_neighbours_are_handled(body: bytes) -> None:
    heard, got = Heard(), []
    store = open_store("memory://")
    broker = OutboxBroker(store, logger=None, observer=heard, retry=NoRetry())

    @broker.subscriber("q", max_workers=1)
    async def handle(body: Any) -> None:
        got.append(body)

    json = {"content-type": "application/json"}
    async with started(broker):
        first = await store.publish(Message(queue="q", body=b"1", headers=json))
        hostile = await store.publish(Message(queue="q", body=body, headers=json))
        last = await store.publish(Message(queue="q", body=b"2", headers=json))
        await heard.until(lambda: len(heard.of(last)) == 1 and len(heard.of(hostile)) == 1)

    assert heard.of(first) == heard.of(last) == [Done()]
    assert isinstance(heard.of(hostile)[0], Dead | Done)
    assert (got[0], got[-1]) == (1, 2)


class Quoting(Exception):
    """Shows its text as it is."""

    def __repr__(self) -> str:
        return str(self.args[0])


LONG = {
    "empty lines": "\n" * 500_000,
    "blank lines": "\n \t" * 200_000,
    "blanks": "\n" + " " * 500_000,
    "written line ends": "\\n" * 250_000,
    "brackets": "\n[" * 250_000,
    "letters": "a" * 500_000,
    "control characters": "\x1b[" * 250_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_no_text_of_an_error_takes_long_to_describe(text: str) -> None:
    begun = time.process_time()

    for error in (Quoting(text), IntegrityError("insert", {}, Exception(text)), ValueError(text)):
        one_line(describe(error))
        fingerprint(describe(error))

    # A tenth of a second, or half a minute if a line is read again from each of its places.
    assert time.process_time() - begun < 5
