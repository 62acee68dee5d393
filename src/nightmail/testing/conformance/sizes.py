"""Sizes: what is too large is refused, and no read exceeds its byte budget."""

from __future__ import annotations

from typing import Final, cast

import pytest

from nightmail.engine import redriving
from nightmail.errors import BatchTooLarge, MessageTooLarge
from nightmail.limits import MAX_BATCH_MESSAGES
from nightmail.message import MAX_HEADERS_BYTES
from nightmail.outcome import Dead, Reason
from nightmail.records import DeadFilter, DeadLetter
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    LEASE,
    QUEUE,
    SECOND,
    bodies,
    bury,
    claim_all,
    claim_bodies,
    claim_letters,
    claim_one,
    fresh_token,
    message,
    needs,
    stored,
    timer,
)
from nightmail.testing.conformance.fixtures import StoreFixtures
from nightmail.testing.conformance.harness import Harness

KIB: Final = 1024
ROOM_FOR_TWO: Final = 2 * KIB + 512


def large(number: int, size: int = KIB) -> bytes:
    """A body of this size that begins with its number."""
    return (b"%d" % number).ljust(size, b".")


def numbers(found: list[bytes]) -> list[int]:
    """Which of the large bodies these are."""
    return [int(body.rstrip(b".")) for body in found]


class SizesConformance(StoreFixtures):
    """Limits at publish, and byte budgets of what is read."""

    # -------------------------------------------------------------------------------------- publish

    async def test_a_body_over_the_limit_is_refused_and_nothing_is_stored(self, harness: Harness) -> None:
        store = await harness.open(max_body_bytes=100)
        try:
            assert store.max_body_bytes == 100
            await stored(store, message(b"x" * 100))
            with pytest.raises(MessageTooLarge, match=r"101 bytes.*at most 100"):
                await store.publish(message(b"x" * 101))
            with pytest.raises(MessageTooLarge):
                await store.publish_batch([message(b"small"), message(b"x" * 101)])

            assert await claim_bodies(store) == [b"x" * 100]
        finally:
            await store.close()

    async def test_headers_over_the_limit_are_refused_and_nothing_is_stored(self, store: FullStore) -> None:
        too_large = {"k": "v" * (MAX_HEADERS_BYTES - 7)}
        says = f"headers must be at most {MAX_HEADERS_BYTES:,} bytes of JSON, not {MAX_HEADERS_BYTES + 1:,}"

        with pytest.raises(ValueError, match=says):
            await store.publish(message(b"alone", headers=too_large))
        with pytest.raises(ValueError, match=says):
            await store.publish(timer("reminder", headers=too_large))
        with pytest.raises(ValueError, match=says):
            await store.publish_batch([message(b"small"), message(b"with it", headers=too_large)])

        assert await claim_all(store) == []

    @needs("transactions")
    async def test_a_body_over_the_limit_leaves_the_callers_transaction_usable(
        self, harness: Harness, store: FullStore
    ) -> None:
        async with harness.transaction() as transaction:
            with pytest.raises(MessageTooLarge):
                await store.publish(message(b"x" * (store.max_body_bytes + 1)), transaction=transaction)
            await store.publish(message(b"small"), transaction=transaction)

        assert await claim_bodies(store) == [b"small"]

    async def test_a_batch_of_too_many_messages_is_refused_before_anything_is_written(
        self, store: FullStore
    ) -> None:
        one = message(b"x")

        with pytest.raises(BatchTooLarge, match="several calls"):
            await store.publish_batch([one] * (MAX_BATCH_MESSAGES + 1))

        assert await claim_all(store) == []

    async def test_a_batch_of_too_many_bytes_is_refused_before_anything_is_written(
        self, store: FullStore
    ) -> None:
        one = message(b"x" * store.max_body_bytes)

        with pytest.raises(BatchTooLarge, match="bytes"):
            await store.publish_batch([one] * 9)

        assert await claim_all(store) == []

    async def test_the_largest_body_and_headers_are_stored_and_delivered(self, store: FullStore) -> None:
        body = b"x" * store.max_body_bytes
        headers = {"k": "v" * (MAX_HEADERS_BYTES - 8)}
        await store.publish(timer("reminder", body, headers=headers, ordering_key="k"))

        delivery = await claim_one(store)

        assert delivery.body == body
        assert delivery.headers == headers

    # ---------------------------------------------------------------------------------------- claim

    async def test_a_claim_stops_before_it_has_read_more_bytes_than_it_may(self, store: FullStore) -> None:
        await store.publish_batch([message(large(number)) for number in range(5)])

        taken = []
        for _ in range(3):
            claimed = await store.claim(
                [QUEUE], limit=100, lease=LEASE, token=fresh_token(), max_bytes=ROOM_FOR_TWO
            )
            taken.append((numbers(bodies(claimed.deliveries)), claimed.full))

        assert taken == [([0, 1], True), ([2, 3], True), ([4], False)]

    async def test_a_claim_stopped_by_bytes_leaves_the_rest_as_it_was(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish_batch([message(large(number)) for number in range(4)])

        await store.claim([QUEUE], limit=100, lease=LEASE, token=fresh_token(), max_bytes=ROOM_FOR_TWO)

        rest = await claim_all(other)
        assert numbers(bodies(rest)) == [2, 3]
        assert {delivery.deliveries for delivery in rest} == {1}

    async def test_a_claim_takes_one_message_however_large(self, store: FullStore) -> None:
        await store.publish_batch([message(large(1)), message(large(2))])

        claimed = await store.claim([QUEUE], limit=100, lease=LEASE, token=fresh_token(), max_bytes=1)

        assert numbers(bodies(claimed.deliveries)) == [1]
        assert claimed.full
        assert claimed.next_in is None

    async def test_bytes_are_counted_over_all_queues_of_a_claim(self, store: FullStore) -> None:
        names = ["orders", "refunds", "mail"]
        for queue in names:
            await store.publish(message(large(1), queue=queue))

        claimed = await store.claim(
            names, limit=100, lease=LEASE, token=fresh_token(), max_bytes=ROOM_FOR_TWO
        )
        assert len(claimed.deliveries) == 2
        assert claimed.full
        assert len(await claim_all(store, *names)) == 1

    async def test_headers_count_as_bytes(self, store: FullStore) -> None:
        await store.publish_batch([message(b"%d" % number, headers={"k": "v" * KIB}) for number in range(3)])

        claimed = await store.claim(
            [QUEUE], limit=100, lease=LEASE, token=fresh_token(), max_bytes=ROOM_FOR_TWO
        )

        assert bodies(claimed.deliveries) == [b"0", b"1"]
        assert claimed.full

    async def test_a_claim_is_full_exactly_when_it_stopped_at_its_limit(self, store: FullStore) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(3)])

        first = await store.claim([QUEUE], limit=2, lease=LEASE, token=fresh_token())
        second = await store.claim([QUEUE], limit=2, lease=LEASE, token=fresh_token())

        assert (len(first.deliveries), first.full, first.next_in) == (2, True, None)
        assert (len(second.deliveries), second.full) == (1, False)

    async def test_a_body_over_the_limit_of_the_reader_becomes_a_dead_letter_unread(
        self, harness: Harness, store: FullStore
    ) -> None:
        await store.publish(message(b"small before"))
        id_ = await stored(store, message(b"x" * 1001))
        await store.publish(message(b"small after"))
        reader = await harness.open(max_body_bytes=1000)
        try:
            assert sorted(await claim_bodies(reader)) == [b"small after", b"small before"]

            (letter,) = await reader.dead(DeadFilter())
            assert (letter.message_id, letter.reason, letter.attempts) == (id_, Reason.TOO_LARGE, 0)
            assert await claim_letters(reader) == []
        finally:
            await reader.close()

    # ---------------------------------------------------------------------------------- dead letters

    async def test_a_claim_of_letters_stops_before_it_has_read_more_bytes_than_it_may(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for number in range(3):
            await bury(store, message(large(number)))
            clock.advance(SECOND)

        taken = []
        for _ in range(2):
            claimed = await store.claim_dead(
                [QUEUE], limit=100, lease=LEASE, token=fresh_token(), max_bytes=ROOM_FOR_TWO
            )
            taken.append((numbers(bodies(claimed.deliveries)), claimed.full))

        assert taken == [([0, 1], True), ([2], False)]

    async def test_a_letter_over_the_limit_of_the_reader_is_given_up_unread_and_kept(
        self, harness: Harness, store: FullStore
    ) -> None:
        await bury(store, message(b"small before"))
        large = await bury(store, message(b"x" * 1001))
        await bury(store, message(b"small after"))
        reader = await harness.open(max_body_bytes=1000)
        try:
            found: list[bytes] = []
            full = True
            while full:
                claimed = await reader.claim_dead([QUEUE], limit=2, lease=LEASE, token=fresh_token())
                found += bodies(claimed.deliveries)
                full = claimed.full
            assert found == [b"small before", b"small after"]

            # Given up for every reader, and there for operators.
            assert await claim_letters(store) == []
            assert await reader.dead(DeadFilter(ids=(large.id,))) == [large]
            assert await redriving.redrive(reader, DeadFilter(ids=(large.id,))) == 1
            assert await claim_all(reader) == []
            (again,) = await reader.dead(DeadFilter(reason=Reason.TOO_LARGE))
            assert again.body == large.body
        finally:
            await reader.close()

    async def test_a_page_of_letters_ends_before_it_has_read_more_bytes_than_it_may(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await died(store, 5)

        pages: list[list[int]] = []
        cursor: int | None = None
        while page := await store.dead(DeadFilter(), cursor=cursor, max_bytes=ROOM_FOR_TWO):
            pages.append(numbers(bodies(page)))
            cursor = page[-1].id

        assert pages == [[4, 3], [2, 1], [0]]

    async def test_many_large_letters_are_redriven_in_order(
        self, store: FullStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redriving, "CLAIM_BYTES", ROOM_FOR_TWO)
        await died(store, 5)
        pages = SmallPages(store)

        assert await redriving.redrive(cast("FullStore", pages), DeadFilter(queue=QUEUE)) == 5

        # First those that list them, until an empty one; then those that are moved.
        assert pages.sizes == [2, 2, 1, 0, 2, 2, 1]
        assert await store.dead(DeadFilter()) == []
        assert numbers(await claim_bodies(store)) == [0, 1, 2, 3, 4]


class SmallPages:
    """A store whose pages have little room: a few dead letters are to it what many large ones are to others."""

    def __init__(self, store: FullStore) -> None:
        self._store = store
        self.redrive = store.redrive
        self.sizes: list[int] = []
        """How many dead letters were in each page."""

    async def dead(
        self, which: DeadFilter, *, limit: int = 100, cursor: int | None = None
    ) -> list[DeadLetter]:
        """See `Inspection.dead`."""
        page = await self._store.dead(which, limit=limit, cursor=cursor, max_bytes=ROOM_FOR_TWO)
        self.sizes.append(len(page))
        return page


async def died(store: FullStore, count: int) -> None:
    """This many large messages, settled as dead in the order of their numbers."""
    await store.publish_batch([message(large(number)) for number in range(count)])
    taken = await claim_all(store)
    await store.settle([Settlement(delivery, Dead("rejected")) for delivery in taken])
