"""Rows that other software wrote into our tables: a claim gives up what it cannot read, and nothing overflows."""

from __future__ import annotations

from typing import Final

import pytest

from nightmail.engine.redriving import redrive
from nightmail.outcome import Dead, Reason, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.testing.conformance.build import bodies, claim_letters, message
from tests.stores.shared.backend import SqlBackend
from tests.stores.support import EVERYTHING, bury, claim, done, settle

MOST: Final = 2**31 - 1


class OddRows:
    """For SQL stores."""

    async def test_counters_stop_at_the_largest_number(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            await store.publish_batch([message(b"odd"), message(b"neighbour")])
            await backend.write_oddly(
                f"update nightmail_messages set attempts = {MOST}, deliveries = {MOST} where body = {backend.odd}"
            )

            odd, neighbour = sorted(await claim(store), key=lambda delivery: delivery.body, reverse=True)
            assert (odd.attempts, odd.deliveries, neighbour.deliveries) == (MOST, MOST, 1)
            assert await store.settle([Settlement(odd, Retry())]) == [WriteResult.WRITTEN]
            (odd,) = await claim(store)
            assert (odd.attempts, odd.deliveries) == (MOST, 1)
            assert await store.settle([Settlement(odd, Dead("rejected", ran=True))]) == [WriteResult.WRITTEN]
            (letter,) = await store.dead(EVERYTHING)
            assert letter.attempts == MOST

            # The same for those of the dead letter itself.
            attempts, deliveries = backend.letter_counters
            await backend.write_oddly(f"update nightmail_dead set {attempts} = {MOST}, {deliveries} = {MOST}")
            for outcome in (Release(), Retry(), Release()):
                assert await settle(store, await claim_letters(store), outcome) == [WriteResult.WRITTEN]
            assert await backend.run(f"select {attempts} from nightmail_dead") == [(MOST,)]

    async def test_headers_that_are_too_large_are_given_up_unread(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            await store.publish_batch([message(b"odd", ordering_key="k"), message(b"next", ordering_key="k")])
            headers = "x" * 2_000_000
            await backend.write_oddly(
                f"update nightmail_messages set headers = '{headers}' where body = {backend.odd}"
            )
            await store.publish(message(b"other"))

            found = [delivery.body for _ in range(2) for delivery in await claim(store)]

            assert sorted(found) == [b"next", b"other"]
            (letter,) = await store.dead(DeadFilter(reason=Reason.TOO_LARGE))
            assert letter.body == b"odd"
            assert await claim_letters(store) == []

    async def test_a_letter_whose_headers_are_too_large_is_not_offered_and_can_be_redriven(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            odd, _ = await bury(store, b"odd", b"sound")
            headers = "x" * 2_000_000
            await backend.write_oddly(
                f"update nightmail_dead set headers = '{headers}' where body = {backend.odd}"
            )

            assert [each.body for _ in range(2) for each in await claim_letters(store)] == [b"sound"]

            (shown,) = await store.dead(DeadFilter(ids=(odd.id,)))
            assert len(shown.encoded_headers) == len(headers)
            assert await redrive(store, DeadFilter(ids=(odd.id,))) == 1
            assert await claim(store) == []
            (again,) = await store.dead(DeadFilter(reason=Reason.TOO_LARGE))
            assert again.body == b"odd"


class UnreadableRows:
    """For stores whose tables cannot refuse everything. Override `assignment`, with each that makes a row odd."""

    odd_letter: str
    """What makes a dead letter odd."""

    @pytest.fixture
    def assignment(self) -> str:
        raise NotImplementedError

    @pytest.fixture(params=[None, "k"])
    def key(self, request: pytest.FixtureRequest) -> str | None:
        """The ordering key of the row and its neighbours."""
        key: str | None = request.param
        return key

    async def test_a_row_that_cannot_be_read_becomes_a_dead_letter_and_its_neighbours_are_claimed(
        self, backend: SqlBackend, assignment: str, key: str | None
    ) -> None:
        async with backend.opened() as store:
            ids = [
                await store.publish(message(body, ordering_key=key)) for body in (b"before", b"odd", b"after")
            ]
            await backend.write_oddly(
                f"update nightmail_messages set {assignment} where body = {backend.odd}"
            )

            found: list[bytes] = []
            for _ in range(3):
                taken = await claim(store)
                found += bodies(taken)
                await done(store, taken)

            assert found == [b"before", b"after"]
            (letter,) = await store.dead(EVERYTHING)
            assert (letter.message_id, letter.body, letter.reason) == (ids[1], b"odd", Reason.UNREADABLE)
            assert 0 <= letter.attempts <= MOST
            # No handler could do anything with it: it is not offered. An operator may.
            assert await claim_letters(store) == []
            assert len(await store.redrive([letter])) == 1
            assert bodies(await claim(store)) == [b"odd"]

    async def test_a_letter_that_cannot_be_read_is_not_offered_and_hides_no_other(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            await bury(store, b"odd", b"sound")
            await backend.write_oddly(
                f"update nightmail_dead set {self.odd_letter} where body = {backend.odd}"
            )

            assert bodies(await claim_letters(store)) == [b"sound"]
            assert await claim_letters(store) == []
            assert sorted(bodies(await store.dead(EVERYTHING))) == [b"odd", b"sound"]
