"""Due exactly when requested: never a microsecond early, and by the store's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Final

import pytest

from nightmail.message import Due
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    MICROSECOND,
    MINUTE,
    SECOND,
    claim_all,
    claim_bodies,
    message,
    needs,
    timer,
)
from nightmail.testing.conformance.harness import Harness

ODD: Final = timedelta(seconds=3, microseconds=141_593)


class DelayConformance:
    """When a message becomes due."""

    async def test_a_message_without_a_due_time_is_due_now(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())

        assert [found.due_at for found in await store.peek()] == [clock.now()]
        assert await claim_bodies(store) == [b"hello"]

    async def test_a_delay_is_never_cut_short_by_a_microsecond(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(due=ODD))

        clock.advance(ODD - MICROSECOND)
        assert await claim_all(store) == []

        clock.advance(MICROSECOND)
        assert await claim_bodies(store) == [b"hello"]

    async def test_a_moment_is_never_anticipated_by_a_microsecond(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(due=clock.now() + ODD))

        clock.advance(ODD - MICROSECOND)
        assert await claim_all(store) == []

        clock.advance(MICROSECOND)
        assert await claim_bodies(store) == [b"hello"]

    @pytest.mark.parametrize(
        "delay",
        [
            pytest.param(MICROSECOND, id="a microsecond"),
            pytest.param(timedelta(microseconds=999_999), id="nearly a second"),
            pytest.param(timedelta(days=30, microseconds=1), id="a month and a microsecond"),
            pytest.param(timedelta(days=36_525, microseconds=123_457), id="a century and some"),
        ],
    )
    async def test_a_delay_is_kept_to_the_microsecond(
        self, store: FullStore, clock: ManualClock, delay: timedelta
    ) -> None:
        now = clock.now()
        await store.publish(message(b"after", due=delay))
        await store.publish(message(b"at", due=now + delay))
        await store.publish_batch([message(b"in a batch", due=delay)])

        assert [found.due_at for found in await store.peek()] == [now + delay] * 3

    async def test_a_clock_between_microseconds_of_other_units_loses_nothing(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        # Every microsecond digit counts: a float or a millisecond rounding anywhere on the way would show here.
        clock.advance(timedelta(microseconds=123_457))
        now = clock.now()
        await store.publish(message(due=timedelta(microseconds=7)))

        assert [found.due_at for found in await store.peek()] == [now + timedelta(microseconds=7)]
        assert [found.published_at for found in await store.peek()] == [now]

    async def test_a_moment_means_the_same_in_every_time_zone(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        nepal = timezone(timedelta(hours=5, minutes=45))
        await store.publish(message(due=datetime(2030, 1, 1, 18, 45, tzinfo=nepal)))

        (pending,) = await store.peek()
        assert pending.due_at == datetime(2030, 1, 1, 13, 0, tzinfo=UTC)
        clock.advance(HOUR - MICROSECOND)
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)
        assert await claim_bodies(store) == [b"hello"]

    async def test_times_come_back_aware(self, store: FullStore) -> None:
        await store.publish(message(expires_in=HOUR))

        (pending,) = await store.peek()
        (delivery,) = await claim_all(store)

        assert pending.due_at.utcoffset() is not None
        assert pending.published_at.utcoffset() is not None
        for moment in (delivery.due_at, delivery.published_at, delivery.claimed_at, delivery.expires_at):
            assert moment is not None
            assert moment.utcoffset() is not None

    @pytest.mark.parametrize(
        "due",
        [
            pytest.param(timedelta(0), id="a delay of nothing"),
            pytest.param(timedelta(days=-400), id="a negative delay"),
            pytest.param(-MICROSECOND, id="a negative microsecond"),
            pytest.param(datetime(1999, 12, 31, tzinfo=UTC), id="a moment in the past"),
            pytest.param(datetime(1, 1, 1, tzinfo=UTC), id="the first moment there is"),
        ],
    )
    async def test_what_is_overdue_when_published_is_stored_as_due_now(
        self, store: FullStore, clock: ManualClock, due: Due
    ) -> None:
        await store.publish(message(b"alone", due=due))
        await store.publish(timer("reminder", b"named", due=due))
        await store.publish_batch([message(b"in a batch", due=due)])

        assert [found.due_at for found in await store.peek()] == [clock.now()] * 3
        assert await claim_bodies(store) == [b"alone", b"named", b"in a batch"]

    async def test_a_past_moment_does_not_jump_the_line(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(message(b"first"))
        clock.advance(SECOND)
        await store.publish(message(b"backdated", due=clock.now() - HOUR))

        assert await claim_bodies(store) == [b"first", b"backdated"]

    async def test_messages_become_due_one_after_the_other(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"later", due=MINUTE * 2))
        await store.publish(message(b"sooner", due=MINUTE))
        await store.publish(message(b"now"))

        assert await claim_bodies(store, lease=HOUR) == [b"now"]
        clock.advance(MINUTE)
        assert await claim_bodies(store, lease=HOUR) == [b"sooner"]
        clock.advance(MINUTE)
        assert await claim_bodies(store, lease=HOUR) == [b"later"]

    async def test_messages_that_became_due_together_go_by_their_due_time(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"third", due=MINUTE * 3))
        await store.publish(message(b"first", due=MINUTE))
        await store.publish(message(b"second", due=clock.now() + MINUTE * 2))
        clock.advance(HOUR)

        assert await claim_bodies(store) == [b"first", b"second", b"third"]

    async def test_a_clock_set_back_makes_late_and_never_early(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(due=MINUTE))
        clock.advance(-HOUR)
        clock.advance(MINUTE)
        assert await claim_all(store) == []

        clock.advance(HOUR)
        assert await claim_bodies(store) == [b"hello"]

    # ------------------------------------------------------------------ in the caller's transaction

    @needs("transactions")
    async def test_a_delay_counts_from_the_publish_call_and_not_from_the_commit(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        start = clock.now()
        async with harness.transaction() as transaction:
            await store.publish(message(due=MINUTE), transaction=transaction)
            clock.advance(SECOND * 45)

        assert [found.due_at for found in await store.peek()] == [start + MINUTE]
        clock.advance(SECOND * 15 - MICROSECOND)
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)
        assert await claim_bodies(store) == [b"hello"]

    @needs("transactions")
    async def test_a_delay_counts_from_the_publish_call_and_not_from_the_start_of_the_transaction(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        start = clock.now()
        async with harness.transaction() as transaction:
            await harness.write(transaction, "order 1")
            clock.advance(SECOND * 45)
            await store.publish(message(b"delayed", due=SECOND * 5), transaction=transaction)
            await store.publish_batch([message(b"now")], transaction=transaction)

        now, delayed = await store.peek()
        assert (now.body, now.due_at, now.published_at) == (b"now", start + SECOND * 45, start + SECOND * 45)
        assert (delayed.body, delayed.due_at) == (b"delayed", start + SECOND * 50)

    @needs("transactions")
    async def test_a_message_whose_due_time_passed_before_the_commit_is_due_at_the_commit(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        start = clock.now()
        async with harness.transaction() as transaction:
            await store.publish(message(due=SECOND), transaction=transaction)
            clock.advance(MINUTE)

        assert [found.due_at for found in await store.peek()] == [start + SECOND]
        assert await claim_bodies(store) == [b"hello"]
