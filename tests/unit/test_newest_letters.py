"""What a doctor says of dead letters when there are more than it looks at."""

from __future__ import annotations

from nightmail.findings import Code, Finding
from nightmail.operations.doctor import Thresholds, diagnose
from nightmail.records import DeadFilter, DeadSummary
from nightmail.stores.memory import MemoryStore
from nightmail.testing.conformance.build import bury, message


class CountsNothing(MemoryStore):
    """Dead letters may be any number: a doctor must not count all of them by cause."""

    async def summarize_dead(self, which: DeadFilter, *, limit: int = 100) -> DeadSummary:
        raise AssertionError("this takes too long")


async def test_a_doctor_looks_at_the_newest_letters_and_says_so() -> None:
    store = CountsNothing()
    await store.open()
    for number in range(30):
        await bury(store, message(queue="mail" if number < 20 else "orders"))

    all_of_them = await _growing(store, Thresholds())
    some = await _growing(store, Thresholds(letters=10))
    await store.close()

    assert all_of_them.what == "30 messages died within the last 15 min"
    assert "30 dead letters in all; the largest group: 20 of mail, " in all_of_them.evidence
    assert some.what == "10 or more messages died within the last 15 min"
    assert "30 dead letters in all; the largest group among the newest 10: 10 of orders, " in some.evidence


async def _growing(store: MemoryStore, thresholds: Thresholds) -> Finding:
    (found,) = [each for each in await diagnose(store, thresholds) if each.code is Code.DEAD_LETTERS_GROWING]
    return found
