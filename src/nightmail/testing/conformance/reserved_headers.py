"""Headers that stores write themselves: a publisher's values for them are dropped."""

from __future__ import annotations

from nightmail.records import DeadFilter
from nightmail.store import FullStore
from nightmail.testing.conformance.build import bury, claim_all, claim_one, message
from nightmail.testing.conformance.fixtures import StoreFixtures


class ReservedHeadersConformance(StoreFixtures):
    """The names that begin with `nightmail-`."""

    async def test_headers_of_ours_cannot_be_published(self, store: FullStore) -> None:
        forged = {"nightmail-redriven": "9" * 5000, "Nightmail-Died-In": "elsewhere", "mine": "kept"}
        await store.publish(message(headers=forged))
        await store.publish_batch([message(headers=forged)])

        assert [delivery.headers for delivery in await claim_all(store)] == [{"mine": "kept"}] * 2

    async def test_a_forged_header_does_not_keep_letters_from_being_redriven(self, store: FullStore) -> None:
        await bury(store, message(headers={"nightmail-redriven": "9" * 5000}))

        assert len(await store.redrive(await store.dead(DeadFilter()))) == 1

        assert (await claim_one(store)).headers["nightmail-redriven"] == "1"
