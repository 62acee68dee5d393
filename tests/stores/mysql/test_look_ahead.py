"""What an idle process is told of many queues at once: never later than a claim would find something."""

from __future__ import annotations

import pytest

from nightmail.outcome import Retry
from nightmail.stores.mysql import MySQLStore
from nightmail.stores.mysql.claiming import MOST_IN_LINE
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import MINUTE, SECOND, claim_all, message, settle_one
from tests.stores.mysql.support import run
from tests.stores.shared.look_ahead import NOW, QUEUES, LookAhead
from tests.stores.support import opened

pytestmark = pytest.mark.mysql


class TestLookAhead(LookAhead):
    """On this store."""


async def test_a_look_ahead_leaves_it_to_a_claim_when_a_lease_ends(mysql_url: str) -> None:
    clock = ManualClock()
    store = MySQLStore(mysql_url, clock=clock)
    async with opened(store):
        await store.publish(message(queue="a"))
        await claim_all(store, "a", lease=SECOND * 30)

        clock.advance(SECOND)
        assert await store.look_ahead(["a"]) == {"a": NOW}


async def test_a_look_ahead_sees_a_line_of_which_most_is_parked(mysql_url: str) -> None:
    store = MySQLStore(mysql_url, clock=ManualClock())
    async with opened(store):
        await store.publish_batch([message(queue="a", ordering_key="key")] * (MOST_IN_LINE + 5))
        (taken,) = await claim_all(store, "a", lease=MINUTE)
        assert await claim_all(store, "a") == []
        [(parked,)] = await run(mysql_url, "select count(*) from nightmail_messages where parked = 1")
        assert parked
        assert await store.look_ahead(["a"]) == {"a": NOW}

        await settle_one(store, taken, Retry(SECOND * 7))
        assert await store.look_ahead(["a"]) == {"a": NOW}


async def test_a_look_ahead_leaves_it_to_a_claim_when_a_pause_ends(mysql_url: str) -> None:
    clock = ManualClock()
    store = MySQLStore(mysql_url, clock=clock)
    async with opened(store):
        await store.publish(message(queue="a"))
        await store.pause("a", until=MINUTE, by="me")
        await store.pause("b", until=MINUTE, by="me")

        assert await claim_all(store, "a") == await claim_all(store, "b") == []
        assert await store.look_ahead(QUEUES) == {"a": NOW, "b": NOW}


async def test_a_date_that_is_none_is_left_to_a_claim(mysql_url: str) -> None:
    store = MySQLStore(mysql_url, clock=ManualClock())
    async with opened(store):
        await store.publish(message(queue="a", due=MINUTE))
        await run(
            mysql_url,
            "set sql_mode = '', check_constraint_checks = 0; update nightmail_messages set due_at = 0",
        )

        assert await store.look_ahead(QUEUES) == {"a": NOW}
