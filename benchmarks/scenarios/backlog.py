"""A store that is full: waiting messages in several queues, some due and some not, some in line; and dead letters."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid4

from benchmarks.adapters.payload import ENCODED
from benchmarks.scenarios.draining import QUEUE
from benchmarks.servers import Server
from nightmail.message import Message
from nightmail.outcome import Dead
from nightmail.records import DeadFilter
from nightmail.store import FullStore, Settlement

OTHERS: Final = ("audit", "invoices", "mail", "reports", "search")
"""Queues that no worker consumes. In the one that is drained everything waits for its due time."""
BULK: Final = 1000
SEED: Final = 20_000
"""How many are published, and a fifth of that given up: the rest is copied from them."""
LEASE: Final = timedelta(minutes=5)
TRACE: Final = "\n".join(f'  File "handlers.py", line {line}, in step' for line in range(10))
ERRORS: Final = (
    ("retries exhausted", "TimeoutError: no answer from 10.0.0.{}@ within 30 s"),
    ("retries exhausted", "ConnectionRefusedError: [Errno 111] Connect call failed ('10.0.0.{}@', 8443)"),
    ("retries exhausted", "KeyError: 'customer-{}@'"),
    ("rejected", "ValueError: order {}@ has no lines"),
    ("rejected", "PermissionError: account {}@ is closed"),
    ("expired", None),
    ("lost", None),
)


@dataclass(frozen=True)
class Backlog:
    """What is in the store, and which messages to ask about."""

    waiting: int
    """The id of a message that is due."""
    behind: int
    """One that waits behind others of its ordering key."""
    dead: int
    """The id of the oldest dead letter."""
    died: int
    """The message that it was."""


async def fill(server: Server, url: str, store: FullStore, *, waiting: int, dead: int) -> Backlog:
    """So many of each. The drained queue gets no dead letters, and nothing that is due."""
    chance = random.Random(4711)
    published, buried = min(waiting, SEED), min(dead, SEED // 5)
    await _bury(store, 1, chance)
    # The oldest: a search that begins with the newest finds it last.
    (letter,) = await store.dead(DeadFilter(), limit=1)
    await _bury(store, buried - 1, chance)
    await _copy(server, url, "nightmail_dead", dead, buried)
    for start in range(0, published, BULK):
        await store.publish_batch([_waiting(chance) for _ in range(min(BULK, published - start))])
    await _copy(server, url, "nightmail_messages", waiting, published)
    await server.tidy(url)
    first, *_ = await store.peek(OTHERS[0], limit=1)
    some = await store.peek(OTHERS[0], limit=1000)
    behind = next(each for each in reversed(some) if each.ordering_key is not None)
    return Backlog(first.id, behind.id, letter.id, letter.message_id)


def _waiting(chance: random.Random) -> Message:
    queue = chance.choice((QUEUE, *OTHERS))
    ahead = queue == QUEUE or chance.random() < 0.5
    seconds = chance.uniform(3600, 30 * 86_400) if ahead else -chance.uniform(0, 7200)
    return Message(
        queue=queue,
        body=ENCODED,
        due=datetime.now(UTC) + timedelta(seconds=seconds),
        priority=chance.choice((0, 0, 0, 0, 4, 9)),
        ordering_key=f"customer {chance.randrange(500)}" if chance.random() < 0.1 else None,
    )


async def _bury(store: FullStore, count: int, chance: random.Random) -> None:
    for start in range(0, count, BULK):
        wanted = min(BULK, count - start)
        await store.publish_batch([Message(queue=chance.choice(OTHERS), body=ENCODED) for _ in range(wanted)])
        while wanted:
            claimed = await store.claim(OTHERS, limit=wanted, lease=LEASE, token=uuid4())
            wanted -= len(claimed.deliveries)
            await store.settle([Settlement(delivery, _death(chance)) for delivery in claimed.deliveries])


def _death(chance: random.Random) -> Dead:
    reason, error = chance.choice(ERRORS)
    said = None if error is None else f"{error.format(chance.randrange(10_000))}\n{TRACE}"
    return Dead(reason, said)


async def _copy(server: Server, url: str, table: str, wanted: int, there: int) -> None:
    if wanted > there:
        await server.multiply(url, table, wanted // there)
