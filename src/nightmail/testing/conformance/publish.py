"""What is published is stored: whole, in the caller's transaction, unchanged."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from nightmail.message import NAME_LIMIT
from nightmail.outcome import Done
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    MINUTE,
    QUEUE,
    bodies,
    claim_all,
    claim_bodies,
    claim_one,
    message,
    needs,
    promptly,
    settle_one,
    stored,
    timer,
)
from nightmail.testing.conformance.harness import Harness, RolledBack

# 255 distinct four-byte characters: the longest name allowed, in bytes as well as in characters.
LONGEST_NAME: Final = "".join(chr(0x1F300 + offset) for offset in range(NAME_LIMIT))

# Names that a collation, padded comparison, pattern or placeholder may mistake for one another or for syntax.
CONFUSABLE_NAMES: Final = (
    "job",
    "Job",
    "JOB",
    "job ",
    " job",
    "job\t",
    "job\n",
    "jób",
    "jo\u0301b",
    "j_b",
    "j%b",
    "j*b",
    "j?b",
    "{job}",
    "job'--",
    'job"',
    "job\\",
    ":job",
    "$1",
    "%s",
    "ß",
    "ss",
    "🌙",
    "🌚",
)


class PublishConformance:
    """Publishing, one by one and in batches."""

    async def test_a_published_message_is_claimed_under_the_id_that_publish_returned(
        self, store: FullStore
    ) -> None:
        id_ = await store.publish(message(b"hello"))

        delivery = await claim_one(store)

        assert delivery.id == id_
        assert delivery.body == b"hello"

    async def test_every_publish_returns_a_new_id(self, store: FullStore) -> None:
        first = await stored(store, message())
        await settle_one(store, await claim_one(store), Done())
        second = await stored(store, message())
        third = await stored(store, message())

        assert len({first, second, third}) == 3

    async def test_a_message_is_for_its_queue_only(self, store: FullStore) -> None:
        await store.publish(message(queue="refunds"))

        assert await claim_all(store, "orders") == []
        assert await claim_bodies(store, "refunds") == [b"hello"]

    async def test_what_one_process_publishes_another_claims(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish(message(b"across"))

        assert await claim_bodies(other) == [b"across"]

    async def test_a_delivery_carries_everything_that_was_published(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        published_at = clock.now()
        await store.publish(
            timer(
                "reminder",
                b"hello",
                queue="refunds",
                headers={"trace": "abc"},
                due=MINUTE,
                expires_in=HOUR,
                ordering_key="customer-7",
                priority=3,
            )
        )
        clock.advance(MINUTE * 2)

        delivery = await claim_one(store, "refunds")

        assert delivery.queue == "refunds"
        assert delivery.body == b"hello"
        assert delivery.headers == {"trace": "abc"}
        assert delivery.timer_id == "reminder"
        assert delivery.ordering_key == "customer-7"
        assert delivery.priority == 3
        assert delivery.published_at == published_at
        assert delivery.due_at == published_at + MINUTE
        assert delivery.expires_at == published_at + HOUR
        assert delivery.claimed_at == published_at + MINUTE * 2
        assert delivery.attempts == 0
        assert delivery.deliveries == 1
        assert delivery.superseded is False

    async def test_what_was_not_given_is_absent(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(message())

        delivery = await claim_one(store)

        assert delivery.headers == {}
        assert delivery.timer_id is None
        assert delivery.ordering_key is None
        assert delivery.expires_at is None
        assert delivery.priority == 0
        assert delivery.due_at == clock.now()

    # ------------------------------------------------------------------ in the caller's transaction

    @needs("transactions")
    async def test_a_message_commits_with_the_transaction_it_was_published_in(
        self, store: FullStore, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await harness.write(transaction, "order 1")
            id_ = await store.publish(message(b"order 1"), transaction=transaction)

        assert await harness.written() == ["order 1"]
        delivery = await claim_one(store)
        assert (delivery.id, delivery.body) == (id_, b"order 1")

    @needs("transactions")
    async def test_a_message_rolls_back_with_the_transaction_it_was_published_in(
        self, store: FullStore, harness: Harness
    ) -> None:
        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await harness.write(transaction, "order 1")
                await store.publish(message(), transaction=transaction)
                raise RolledBack

        assert await harness.written() == []
        assert await store.peek() == []
        assert await claim_all(store) == []

    @needs("transactions")
    async def test_a_rolled_back_publish_leaves_the_name_free(
        self, store: FullStore, harness: Harness
    ) -> None:
        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.publish(timer("reminder", b"never was"), transaction=transaction)
                raise RolledBack

        assert await store.publish(timer("reminder", b"first")) is not None
        assert await claim_bodies(store) == [b"first"]

    @needs("transactions")
    async def test_a_message_is_not_seen_before_its_transaction_commits(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish(message(b"soon"), transaction=transaction)

            async with promptly():
                assert await store.peek() == []
                assert await other.peek() == []

        assert bodies(await other.peek()) == [b"soon"]

    @needs("transactions", "concurrent_writers")
    async def test_a_message_is_not_claimed_before_its_transaction_commits(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish(message(b"soon"), transaction=transaction)

            async with promptly():
                assert await claim_all(store) == []
                assert await claim_all(other) == []

        assert await claim_bodies(other) == [b"soon"]

    @needs("transactions", "concurrent_writers")
    async def test_an_open_publish_does_not_keep_other_messages_waiting(
        self, store: FullStore, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish(message(b"open"), transaction=transaction)

            async with promptly():
                await store.publish(message(b"through"))
                assert await claim_bodies(store) == [b"through"]

    @needs("transactions")
    async def test_several_publishes_in_one_transaction_commit_together(
        self, store: FullStore, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish(message(b"one"), transaction=transaction)
            await harness.write(transaction, "order 1")
            await store.publish_batch([message(b"two"), message(b"three")], transaction=transaction)
            assert await store.peek() == []

        assert await claim_bodies(store) == [b"one", b"two", b"three"]

    @needs("transactions")
    async def test_two_transactions_after_one_another_decide_for_themselves(
        self, store: FullStore, harness: Harness
    ) -> None:
        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.publish(message(b"dropped"), transaction=transaction)
                raise RolledBack
        async with harness.transaction() as transaction:
            await store.publish(message(b"kept"), transaction=transaction)

        assert await claim_bodies(store) == [b"kept"]

    # ---------------------------------------------------------------------------------------- batch

    async def test_a_batch_returns_the_ids_of_its_messages_in_order(self, store: FullStore) -> None:
        ids = await store.publish_batch([message(b"a"), message(b"b"), message(b"c")])

        pending = {found.id: found.body for found in await store.peek()}
        assert [pending[id_] for id_ in ids] == [b"a", b"b", b"c"]

    async def test_a_batch_of_messages_due_at_once_is_claimed_in_its_order(self, store: FullStore) -> None:
        ids = await store.publish_batch([message(b"%03d" % number) for number in range(300)])

        deliveries = await claim_all(store, limit=300)

        assert bodies(deliveries) == [b"%03d" % number for number in range(300)]
        assert [delivery.id for delivery in deliveries] == ids

    async def test_the_messages_of_a_batch_keep_what_is_theirs(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        now = clock.now()
        plain, rich = await store.publish_batch(
            [
                message(b"plain"),
                message(
                    b"rich",
                    queue="refunds",
                    headers={"trace": "abc"},
                    due=now + MINUTE,
                    expires_in=HOUR,
                    ordering_key="customer-7",
                    priority=9,
                ),
            ]
        )

        first, second = await store.peek()

        assert (first.id, first.queue, first.body, first.headers) == (plain, QUEUE, b"plain", {})
        assert (first.due_at, first.expires_at, first.ordering_key, first.priority) == (now, None, None, 0)
        assert (second.id, second.queue, second.body) == (rich, "refunds", b"rich")
        assert second.headers == {"trace": "abc"}
        assert (second.due_at, second.expires_at) == (now + MINUTE, now + HOUR)
        assert (second.ordering_key, second.priority) == ("customer-7", 9)

    async def test_the_messages_of_a_batch_with_one_ordering_key_go_in_its_order(
        self, store: FullStore
    ) -> None:
        await store.publish_batch([message(body, ordering_key="k") for body in (b"a", b"b", b"c")])

        seen = []
        for _ in range(3):
            delivery = await claim_one(store)
            seen.append(delivery.body)
            await settle_one(store, delivery, Done())

        assert seen == [b"a", b"b", b"c"]

    async def test_an_empty_batch_is_nothing(self, store: FullStore) -> None:
        assert await store.publish_batch([]) == []

        assert await store.stats() == {}

    async def test_a_batch_with_a_timer_id_is_refused_whole(self, store: FullStore) -> None:
        with pytest.raises(ValueError, match="timer"):
            await store.publish_batch([message(b"a"), timer("reminder", b"b"), message(b"c")])

        assert await store.peek() == []
        assert await store.publish(timer("reminder")) is not None

    @needs("transactions")
    async def test_a_refused_batch_leaves_the_transaction_usable(
        self, store: FullStore, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await harness.write(transaction, "order 1")
            with pytest.raises(ValueError, match="timer"):
                await store.publish_batch([message(b"a"), timer("reminder")], transaction=transaction)
            await store.publish(message(b"after"), transaction=transaction)

        assert await harness.written() == ["order 1"]
        assert await claim_bodies(store) == [b"after"]

    @needs("transactions")
    async def test_a_batch_commits_whole_with_its_transaction(
        self, store: FullStore, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            ids = await store.publish_batch([message(b"a"), message(b"b")], transaction=transaction)
            assert await store.peek() == []

        assert [(found.id, found.body) for found in await store.peek()] == [(ids[0], b"a"), (ids[1], b"b")]

    @needs("transactions")
    async def test_a_batch_rolls_back_whole_with_its_transaction(
        self, store: FullStore, harness: Harness
    ) -> None:
        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.publish_batch([message(b"a"), message(b"b")], transaction=transaction)
                raise RolledBack

        assert await store.peek() == []

    @pytest.mark.parametrize("steps", range(6))
    async def test_a_batch_whose_publisher_is_cancelled_is_stored_whole_or_not_at_all(
        self, store: FullStore, steps: int
    ) -> None:
        publishing = asyncio.ensure_future(store.publish_batch([message(b"a"), message(b"b")]))
        for _ in range(steps):
            await asyncio.sleep(0)
        publishing.cancel()
        await asyncio.wait([publishing])

        # What was sent may still be carried out; either way, the store goes on working.
        await store.publish(message(b"after"))
        seen = set(await claim_bodies(store))
        assert seen in ({b"after"}, {b"a", b"b", b"after"})

    # ------------------------------------------------------------------------------------- fidelity

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"\x00", id="only NUL"),
            pytest.param(b"before\x00after\x00", id="NUL inside and at the end"),
            pytest.param(bytes(range(256)), id="every byte"),
            pytest.param("żółć 🌙".encode(), id="text"),
            pytest.param(b"\xff\xfe\xed\xa0\x80", id="not text in any encoding"),
            pytest.param(b"\\x00 %s :name $1 'quoted'", id="looks like syntax"),
            pytest.param(bytes(range(256)) * 4096, id="a megabyte"),
        ],
    )
    async def test_a_body_comes_back_byte_for_byte(self, store: FullStore, body: bytes) -> None:
        await store.publish(message(body))

        assert (await claim_one(store)).body == body

    async def test_bodies_in_a_batch_come_back_byte_for_byte(self, store: FullStore) -> None:
        sent = [b"", b"\x00", b"a\x00b", bytes(range(256)), b"\xff\xfe"]
        await store.publish_batch([message(body) for body in sent])

        assert await claim_bodies(store) == sent

    @pytest.mark.parametrize(
        "headers",
        [
            pytest.param({}, id="none"),
            pytest.param({"": "", "a b": "c"}, id="odd names"),
            pytest.param({"name": "żółć", "Name": "other"}, id="names that differ by case"),
            pytest.param({"🌙": "emoji 🌚 and \u202e reversed"}, id="emoji"),
            pytest.param({"nul": "a\x00b", "half": "\ud83c"}, id="what databases refuse in text"),
            pytest.param({"nested": {"list": [1, 2.5, None, True, "x"], "empty": {}}}, id="nested"),
            pytest.param({"big": 2**70, "negative": -(2**63), "small": 5e-324, "float": 1.0}, id="numbers"),
            pytest.param({"quote": "\"'\\ :name $1 %s {}"}, id="looks like syntax"),
            pytest.param({"long": "x" * 60_000}, id="long"),
        ],
    )
    async def test_headers_come_back_as_they_were(self, store: FullStore, headers: dict[str, Any]) -> None:
        await store.publish(message(headers=headers))
        await store.publish_batch([message(headers=headers)])

        alone, in_batch = await claim_all(store)

        assert alone.headers == headers
        assert in_batch.headers == headers

    async def test_the_longest_names_are_kept(self, store: FullStore) -> None:
        await store.publish(timer(LONGEST_NAME, queue=LONGEST_NAME, ordering_key=LONGEST_NAME))

        delivery = await claim_one(store, LONGEST_NAME)

        assert delivery.queue == LONGEST_NAME
        assert delivery.timer_id == LONGEST_NAME
        assert delivery.ordering_key == LONGEST_NAME

    async def test_names_that_differ_only_at_the_far_end_are_different_names(self, store: FullStore) -> None:
        nearly = LONGEST_NAME[:-1] + "x"
        await store.publish(timer(LONGEST_NAME, b"one"))
        await store.publish(timer(nearly, b"other"))

        assert await claim_bodies(store) == [b"one", b"other"]

    async def test_queues_that_look_alike_are_different_queues(self, store: FullStore) -> None:
        for name in CONFUSABLE_NAMES:
            await store.publish(message(name.encode(), queue=name))

        for name in CONFUSABLE_NAMES:
            delivery = await claim_one(store, name)
            assert (delivery.queue, delivery.body) == (name, name.encode())

    async def test_timer_ids_that_look_alike_are_different_timers(self, store: FullStore) -> None:
        for name in CONFUSABLE_NAMES:
            assert await store.publish(timer(name)) is not None, f"{name!r} was taken for another name"

        for name in CONFUSABLE_NAMES:
            assert [found.timer_id for found in await store.peek(timer_id=name)] == [name]
            assert await store.cancel(QUEUE, name)
        assert await store.peek() == []

    async def test_ordering_keys_that_look_alike_are_different_keys(self, store: FullStore) -> None:
        await store.publish_batch([message(ordering_key=name) for name in CONFUSABLE_NAMES])

        deliveries = await claim_all(store)

        assert [delivery.ordering_key for delivery in deliveries] == list(CONFUSABLE_NAMES)
