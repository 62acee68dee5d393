"""Writers that meet at a row: the rules hold for the second one, and no other caller waits."""

from __future__ import annotations

import asyncio

import pytest

from nightmail.message import Message, OnConflict
from nightmail.outcome import Done, Retry, WriteResult
from nightmail.store import FullStore, Settlement
from nightmail.testing.conformance.build import HOUR, message
from tests.stores.shared.backend import SqlBackend
from tests.stores.support import claim, done, until


async def overtaken(
    backend: SqlBackend, store: FullStore, first: Message, second: Message
) -> tuple[int | None, int | None]:
    """What two publishes of one timer id give when the second begins before the first commits, and sees it then."""

    async def publish() -> int | None:
        async with backend.transaction() as two:
            return await store.publish(second, transaction=two)

    async with backend.transaction() as one:
        stored = await store.publish(first, transaction=one)
        waiting = asyncio.create_task(publish())
        await until(lambda: waiting.done() or backend.waits_for_a_lock())
        assert not waiting.done(), "the second publish did not wait for the first"
    return stored, await waiting


class Overtaking:
    """For stores that several write to at the same time."""

    @pytest.mark.parametrize(("policy", "kept"), [("replace", b"second"), ("earliest", b"first")])
    async def test_a_timer_that_appears_under_a_replacement_is_replaced_or_kept_by_the_rules(
        self, backend: SqlBackend, policy: OnConflict, kept: bytes
    ) -> None:
        async with backend.opened() as store:
            first, second = await overtaken(
                backend,
                store,
                message(b"first", timer_id="t", due=HOUR),
                message(b"second", timer_id="t", due=HOUR * 2, on_conflict=policy),
            )

            assert second == (first if kept == b"second" else None)
            assert [(found.id, found.body) for found in await store.peek()] == [(first, kept)]

    @pytest.mark.parametrize("with_a_window", [False, True])
    async def test_of_two_publishes_one_is_stored_and_a_window_stays_only_if_that_one_opened_it(
        self, backend: SqlBackend, with_a_window: bool
    ) -> None:
        async with backend.opened() as store:
            first, second = await overtaken(
                backend,
                store,
                message(b"first", timer_id="t", dedup_for=HOUR if with_a_window else None),
                message(b"second", timer_id="t", dedup_for=HOUR),
            )

            assert (first is not None, second) == (True, None)
            await done(store, await claim(store))
            assert (await store.publish(message(b"third", timer_id="t")) is None) == with_a_window

    async def test_of_two_publishes_without_a_window_the_second_gives_way_and_its_transaction_goes_on(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            first, second = await overtaken(
                backend, store, message(b"first", timer_id="t"), message(b"second", timer_id="t")
            )

            assert second is None
            assert [(found.id, found.body) for found in await store.peek()] == [(first, b"first")]

    async def test_a_publish_waits_for_an_open_transaction_and_lets_others_go_first(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            async with backend.transaction() as transaction:
                await store.publish(message(b"first", timer_id="t"), transaction=transaction)
                replacement = message(b"second", timer_id="t", on_conflict="replace")
                waiting = [
                    asyncio.create_task(store.publish(message(timer_id="t"))),
                    asyncio.create_task(store.publish(replacement)),
                ]
                async with asyncio.timeout(10):
                    for _ in range(5):
                        assert await store.publish(message(b"others")) is not None
                assert not any(task.done() for task in waiting)

            skipped, replaced = await asyncio.gather(*waiting)
            assert skipped is None
            assert [(found.id, found.body) for found in await store.peek(timer_id="t")] == [
                (replaced, b"second")
            ]

    async def test_a_batch_with_a_locked_row_settles_the_others(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            await store.publish_batch([message(b"%d" % n) for n in range(20)])
            deliveries = await claim(store, limit=20)
            async with backend.transaction() as own:
                await backend.execute(
                    own, f"select id from nightmail_messages where id = {deliveries[7].id} for update"
                )

                results = await store.settle(
                    [
                        Settlement(delivery, Done() if n % 2 else Retry())
                        for n, delivery in enumerate(deliveries)
                    ]
                )

            assert [n for n, result in enumerate(results) if result is not WriteResult.WRITTEN] == [7]
            assert results[7] is WriteResult.BUSY
            assert await done(store, [deliveries[7]]) == [WriteResult.WRITTEN]

    async def test_a_deadlock_is_told_to_one_caller_and_the_other_goes_on(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            for name in ("a", "b"):
                await store.publish(message(timer_id=name))
            both_have_one = asyncio.Barrier(2)

            async def replace_both(first: str, second: str) -> None:
                async with backend.transaction() as own:
                    await store.publish(message(timer_id=first, on_conflict="replace"), transaction=own)
                    await both_have_one.wait()
                    await store.publish(message(timer_id=second, on_conflict="replace"), transaction=own)

            results = await asyncio.gather(
                replace_both("a", "b"), replace_both("b", "a"), return_exceptions=True
            )

            (told,) = [result for result in results if result is not None]
            # The driver's own error: the caller knows what to do with it.
            assert isinstance(told, backend.deadlock)
