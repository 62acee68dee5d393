"""Long lines behind one ordering key, many keys, many queues: none of them hides what a claim can take."""

from __future__ import annotations

from typing import Final

import pytest

from nightmail.outcome import Done, Retry
from nightmail.store import Claimed, FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    QUEUE,
    SECOND,
    bodies,
    claim_all,
    claim_one,
    fresh_token,
    message,
    settle_one,
)

LONG: Final = 1_500
"""More than any store scans at once for a small claim."""


async def look(store: FullStore, *queues: str, limit: int) -> Claimed:
    """One claim."""
    return await store.claim(queues or (QUEUE,), limit=limit, lease=LEASE, token=fresh_token())


async def drained(store: FullStore, *, limit: int, most: int = 10) -> list[bytes]:
    """The bodies that claims find until one says that nothing is left."""
    found: list[bytes] = []
    for _ in range(most):
        claimed = await look(store, limit=limit)
        found += bodies(claimed.deliveries)
        if not claimed.full:
            return found
    raise AssertionError(f"after {most} claims there is said to be more")


class BacklogsConformance:
    """What waits for an ordering key holds up no other message."""

    @pytest.mark.parametrize("held", [True, False], ids=["held", "free"])
    async def test_others_are_found_behind_a_long_line_of_one_key(
        self, store: FullStore, clock: ManualClock, held: bool
    ) -> None:
        await store.publish_batch([message(b"hot", ordering_key="hot") for _ in range(LONG)])
        clock.advance(SECOND)
        await store.publish_batch(
            [message(b"free"), message(b"x", ordering_key="x"), message(b"y", ordering_key="y")]
        )
        if held:
            (head,) = (await look(store, limit=1)).deliveries
            await settle_one(store, head, Retry(HOUR))

        found = await drained(store, limit=5)

        assert found == [*([] if held else [b"hot"]), b"free", b"x", b"y"]

    async def test_a_long_line_goes_on_in_its_order_beside_others(self, store: FullStore) -> None:
        await store.publish_batch([message(b"%d" % number, ordering_key="hot") for number in range(LONG)])
        await store.publish_batch([message(b"other %d" % number) for number in range(20)])

        lines: list[bytes] = []
        others: list[bytes] = []
        for _ in range(30):
            claimed = await look(store, limit=3)
            for body in bodies(claimed.deliveries):
                (others if body.startswith(b"other") else lines).append(body)
            await store.settle([Settlement(delivery, Done()) for delivery in claimed.deliveries])

        assert lines == [b"%d" % number for number in range(len(lines))]
        assert len(lines) >= 25
        assert len(others) == 20

    async def test_one_that_becomes_due_late_with_a_lower_id_goes_next_in_a_long_line(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"lowest id", ordering_key="hot", due=SECOND))
        await store.publish_batch([message(b"%d" % number, ordering_key="hot") for number in range(LONG)])
        first = await claim_one(store)
        clock.advance(SECOND)
        assert await claim_all(store) == []

        await settle_one(store, first, Done())

        assert (await claim_one(store)).body == b"lowest id"

    async def test_the_first_of_every_key_is_found_among_many_long_lines(self, store: FullStore) -> None:
        await store.publish_batch(
            [message(b"%d" % number, ordering_key=f"key {number % 30}") for number in range(LONG)]
        )
        expected = [b"%d" % number for number in range(30)]

        assert await drained(store, limit=7) == expected

    async def test_higher_priorities_go_first_beside_a_long_line(self, store: FullStore) -> None:
        await store.publish_batch([message(b"hot", ordering_key="hot", priority=9) for _ in range(LONG)])
        await store.publish_batch(
            [message(b"low", ordering_key="x", priority=1), message(b"high", ordering_key="y", priority=9)]
        )

        found = await drained(store, limit=2)

        assert found == [b"hot", b"high", b"low"]

    async def test_every_one_of_many_queues_is_served(self, store: FullStore) -> None:
        queues = [f"queue {number}" for number in range(300)]
        for priority in (1, 5):
            await store.publish_batch(
                [message(queue.encode(), queue=queue, priority=priority) for queue in queues]
            )

        claimed = await look(store, *queues, limit=1_000)

        assert sorted(bodies(claimed.deliveries)) == sorted(2 * [queue.encode() for queue in queues])
        assert not claimed.full
