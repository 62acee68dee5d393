"""Rows that other software wrote: the tables refuse what they can, and a claim gives up the rest and goes on."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from nightmail.outcome import Reason
from nightmail.records import DeadFilter
from nightmail.stores.sqlite import SQLiteStore
from nightmail.stores.sqlite.claiming import SMALL
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, bodies, claim_all, message
from tests.stores.shared.odd_rows import OddRows, UnreadableRows
from tests.stores.sqlite.support import unchecked

pytestmark = pytest.mark.sqlite


class TestOddRows(OddRows):
    """On this store."""


MOST = 2**31 - 1
ODD = {
    "a due time before the calendar": "due_at = -9000000000000000000",
    "a due time below all numbers": "due_at = -9e999",
    "a due time after the calendar": "due_at = 9000000000000000000",
    "a due time that is text": "due_at = 'tomorrow'",
    "a due time that is bytes": "due_at = x'00'",
    "an expiry after the calendar": "expires_at = 9000000000000000000",
    "an expiry that is text": "expires_at = 'infinity'",
    "an expiry that is bytes": "expires_at = x'ff'",
    "an expiry above all numbers": "expires_at = 9e999",
    "a publish time that is text": "published_at = 'now'",
    "a first attempt that is bytes": "first_attempt_at = x'ff'",
    "a last attempt before the calendar": "last_attempt_at = -9000000000000000000",
    "too many attempts": "attempts = 9223372036854775807",
    "fewer attempts than none": "attempts = -1",
    "attempts that are text": "attempts = 'many'",
    "too many deliveries": "deliveries = 9223372036854775807",
    "deliveries that are bytes": "deliveries = x'01'",
    "a priority that is text": "priority = 'high'",
    "a priority that is too high": "priority = 10",
    "a priority that is too low": "priority = -1",
    "superseded more than once": "superseded = 2",
}


class TestUnreadableRows(UnreadableRows):
    odd_letter = "published_at = 'then'"

    @pytest.fixture(params=ODD.values(), ids=list(ODD))
    def assignment(self, request: pytest.FixtureRequest) -> str:
        assignment: str = request.param
        return assignment

    @pytest.fixture
    def key(self) -> None:
        """None: with one, a row whose due time or priority is odd holds up its line."""


def change(file: Path, assignment: str, which: str = "body = x'6f6464'") -> None:
    with closing(unchecked(file)) as connection, connection:
        connection.execute(f"UPDATE nightmail_messages SET {assignment} WHERE {which}")


class TestColumns:
    @pytest.mark.parametrize("assignment", ODD.values(), ids=ODD)
    async def test_the_tables_refuse_what_no_message_can_have(
        self, store: SQLiteStore, file: Path, assignment: str
    ) -> None:
        await store.publish(message())

        with closing(sqlite3.connect(file)) as connection, pytest.raises(sqlite3.IntegrityError):
            connection.execute(f"UPDATE nightmail_messages SET {assignment}")


class TestOtherOddRows:
    @pytest.mark.parametrize("assignment", ODD.values(), ids=ODD)
    async def test_an_odd_row_hides_no_other_from_an_operator(
        self, store: SQLiteStore, file: Path, assignment: str
    ) -> None:
        await store.publish_batch([message(b"before"), message(b"odd"), message(b"after")])
        change(file, assignment)

        assert sorted(bodies(await store.peek())) >= [b"after", b"before"]
        assert (await store.stats())[QUEUE].ready >= 2

    async def test_a_claim_of_one_passes_over_odd_rows(self, store: SQLiteStore, file: Path) -> None:
        await store.publish_batch([*[message(b"odd")] * 3, message(b"sound")])
        change(file, "expires_at = 'infinity'")

        assert bodies(await claim_all(store, limit=1)) == [b"sound"]
        assert len(await store.dead(DeadFilter())) == 3

    async def test_very_many_odd_rows_are_given_up_in_several_claims(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await store.publish_batch([*[message(b"odd")] * 30, message(b"sound")])
        change(file, "expires_at = 'infinity'")

        found: list[bytes] = []
        for _ in range(10):
            claimed = await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())
            found += bodies(claimed.deliveries)
            if not claimed.full:
                break

        assert found == [b"sound"]

    async def test_an_odd_row_lets_go_of_its_ordering_key(self, store: SQLiteStore, file: Path) -> None:
        await store.publish_batch([message(b"odd", ordering_key="k"), message(b"next", ordering_key="k")])
        change(file, "attempts = -1")

        assert bodies(await claim_all(store)) == [b"next"]

    async def test_an_odd_lease_does_not_stop_the_others(self, store: SQLiteStore, file: Path) -> None:
        await store.publish_batch([message(b"odd"), message(b"sound")])
        change(file, f"lease_until = 'never', claimed_at = 0, token = x'{uuid4().hex}'")

        assert bodies(await claim_all(store)) == [b"sound"]


class TestTooLarge:
    async def test_a_body_is_moved_to_the_letters_whole(
        self, file: Path, store: SQLiteStore, clock: ManualClock
    ) -> None:
        body = bytes(range(256)) * 8192
        await store.publish_batch([message(body), message(b"small")])
        reader = SQLiteStore(file, clock=clock, max_body_bytes=SMALL)
        await reader.open()

        assert bodies(await claim_all(reader)) == [b"small"]

        (letter,) = await reader.dead(DeadFilter())
        assert letter.reason == Reason.TOO_LARGE
        assert letter.body == body
        await reader.close()

    @pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
    def test_a_body_that_is_too_large_is_never_in_memory(self, file: Path) -> None:
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("huge.py"), file],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )

        grown, delivered, reason = done.stdout.split()
        assert (delivered, reason) == ("1", Reason.TOO_LARGE)
        assert int(grown) < 40 * 1024**2


class TestOrderOfALine:
    async def test_one_that_is_due_earlier_goes_before_the_one_before_it(
        self, store: SQLiteStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"first", ordering_key="k", due=HOUR))
        await store.publish(message(b"second", ordering_key="k"))
        await store.publish(message(b"third", ordering_key="k"))

        assert bodies(await claim_all(store)) == [b"second"]

    async def test_when_all_are_due_the_first_goes(self, store: SQLiteStore, clock: ManualClock) -> None:
        await store.publish(message(b"first", ordering_key="k", due=HOUR * 2))
        await store.publish(message(b"second", ordering_key="k", due=HOUR))
        await store.publish(message(b"third", ordering_key="k"))
        clock.advance(HOUR * 2)

        assert bodies(await claim_all(store)) == [b"first"]
