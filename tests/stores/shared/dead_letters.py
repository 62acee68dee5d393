"""Dead letters when others are at work: locks that others hold, and timer ids that others are about to take."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nightmail.errors import NightmailError
from nightmail.outcome import Done, Retry, WriteResult
from nightmail.records import DeadLetter, Swept
from nightmail.store import Settlement
from nightmail.testing.conformance.build import AT_ONCE, HOUR, MICROSECOND, bodies, claim_letters, message
from tests.stores.shared.backend import SqlBackend
from tests.stores.support import EVERYTHING, bury, claim, done


@asynccontextmanager
async def locked(backend: SqlBackend, *letters: DeadLetter) -> AsyncIterator[Any]:
    """An open transaction that has locked these letters."""
    ids = ", ".join(str(letter.id) for letter in letters)
    async with backend.transaction() as transaction:
        await backend.execute(transaction, backend.lock_letters.format(ids=ids))
        yield transaction


class LockedDeadLetters:
    """For stores that lock rows."""

    async def test_a_claim_takes_the_next_letters_for_those_that_others_have_locked(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            letters = await bury(store, *(b"%d" % n for n in range(40)))
            async with locked(backend, *letters[:30]), asyncio.timeout(5):
                assert bodies(await claim_letters(store, limit=2)) == [b"30", b"31"]
                assert bodies(await claim_letters(store)) == [b"%d" % n for n in range(32, 40)]

            assert bodies(await claim_letters(store)) == [b"%d" % n for n in range(30)]

    async def test_a_redrive_and_a_purge_pass_over_a_letter_that_others_have_locked(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            first, second, third, _ = await bury(store, b"first", b"second", b"third", b"purged")
            async with locked(backend, second), asyncio.timeout(5):
                assert len(await store.redrive([first, second, third])) == 2
                assert await store.purge(EVERYTHING, limit=10) == 1

            assert bodies(await store.dead(EVERYTHING)) == [b"second"]
            assert bodies(await claim(store)) == [b"first", b"third"]

    async def test_a_sweep_passes_over_what_others_have_locked(self, backend: SqlBackend) -> None:
        async with backend.opened(keep_delivered=True) as store:
            first, *_ = await bury(store, b"first", b"second", b"third")
            for name in ("t", "u"):
                await store.publish(message(timer_id=name, dedup_for=MICROSECOND))
            await done(store, await claim(store))
            async with locked(backend, first) as transaction, asyncio.timeout(5):
                for statement in (
                    "select id from nightmail_delivered order by id limit 1 for update",
                    "select timer_id from nightmail_dedup where timer_id = 't' for update",
                ):
                    await backend.execute(transaction, statement)

                assert await store.sweep(older_than=AT_ONCE, limit=10) == Swept(delivered=1, dead=2, dedup=1)

            assert await store.dead(EVERYTHING) == [first]
            assert await store.sweep(older_than=AT_ONCE, limit=10) == Swept(delivered=1, dead=1, dedup=1)

    async def test_a_window_that_is_opened_again_while_it_is_swept_stays(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            await store.publish(message(timer_id="t", dedup_for=MICROSECOND))
            await done(store, await claim(store))
            async with backend.transaction() as own:
                await store.publish(message(timer_id="t", dedup_for=HOUR), transaction=own)
                assert (await store.sweep(older_than=AT_ONCE, limit=10)).dedup == 0

            await done(store, await claim(store))
            assert (await store.sweep(older_than=AT_ONCE, limit=10)).dedup == 0
            assert await store.publish(message(timer_id="t")) is None


class RefusedDeadLetters:
    """For stores in which users may have triggers."""

    async def test_a_letter_that_the_server_refuses_to_delete_does_not_fail_its_neighbours_and_is_logged_by_its_id(
        self, backend: SqlBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with backend.opened() as store:
            await bury(store, b"s3cret", b"bad s3cret", b"s3cret too")
            await backend.refuse("bad s3cret", on="delete", table="dead")
            good, bad, fine = await claim_letters(store)

            with caplog.at_level(logging.ERROR):
                results = await store.settle(
                    [Settlement(good, Done()), Settlement(bad, Done()), Settlement(fine, Retry())]
                )

            assert results == [WriteResult.WRITTEN, WriteResult.BUSY, WriteResult.WRITTEN]
            assert f"dead letter {bad.id}" in caplog.text
            assert "s3cret" not in caplog.text

    async def test_a_redrive_that_the_server_refuses_moves_nothing_and_tells_no_body(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            letters = await bury(store, b"s3cret", b"bad s3cret", b"s3cret too")
            await backend.refuse("bad s3cret")

            with pytest.raises(NightmailError) as raised:
                await store.redrive(letters)

            assert "s3cret" not in repr(raised.value)
            assert await store.dead(EVERYTHING) == letters[::-1]
            assert await claim(store) == []
