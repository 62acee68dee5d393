"""What runs on a caller's connection must be cheap under the caller's settings, not only under ours.

Above a cost of 100,000 Postgres compiles a statement before it runs it, which takes longer than a second. Our own
connections turn that off; a caller's do not, and a table without statistics makes every estimate a guess.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from nightmail import Message
from nightmail.outcome import Dead
from nightmail.store import Settlement
from nightmail.stores.postgres import PostgresStore
from tests.counters.baseline import within

COMPILED_ABOVE = 100_000


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(postgres_url)
    await made.open()
    await made.migrate()
    yield made
    await made.close()


async def test_no_statement_in_a_callers_transaction_is_worth_compiling(
    postgres_url: str, store: PostgresStore
) -> None:
    await store.publish_batch([Message(queue="q", body=b"x") for _ in range(5)])
    claimed = await store.claim(["q"], limit=5, lease=timedelta(minutes=1), token=uuid4())
    await store.settle([Settlement(delivery, Dead("rejected")) for delivery in claimed.deliveries[:2]])
    letters = await store.claim_dead(["q"], limit=5, lease=timedelta(minutes=1), token=uuid4())
    caller = await asyncpg.connect(postgres_url)
    sent: list[tuple[str, tuple[Any, ...]]] = []

    async def note(record: asyncpg.connection.LoggedQuery) -> None:
        sent.append((record.query, record.args))

    caller.add_query_logger(note)
    async with caller.transaction():
        many = [Message(queue="q", body=b"x") for _ in range(500)]
        await store.publish_batch(many, transaction=caller)
        await store.publish(Message(queue="q", body=b"x", timer_id="a"), transaction=caller)
        await store.publish(
            Message(queue="q", body=b"x", timer_id="a", on_conflict="replace"), transaction=caller
        )
        await store.reschedule("q", "a", timedelta(hours=1), transaction=caller)
        await store.cancel("q", "a", transaction=caller)
        await store.peek("q", transaction=caller)
        await store.hold(claimed.deliveries[2:], transaction=caller)
        await store.ack(claimed.deliveries[2:], transaction=caller)
        await store.hold(letters.deliveries, transaction=caller)
        await store.ack(letters.deliveries, transaction=caller)
        await store.cancel_all("q", transaction=caller)
    caller.remove_query_logger(note)

    costs = dict[str, float]()
    for query, arguments in sent:
        if "nightmail_" in query:  # The driver asks for types of its own accord.
            plan = await caller.fetchval(f"explain (format json) {query}", *arguments)
            costs[query] = json.loads(plan)[0]["Plan"]["Total Cost"]
    await caller.close()

    assert len(costs) >= 10
    for query, cost in costs.items():
        within("planner's cost", cost, COMPILED_ABOVE, query)
