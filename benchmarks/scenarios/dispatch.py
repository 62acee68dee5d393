"""FastStream alone: how fast it takes a message from memory through a typed handler.

Measured with FastStream's own Redis subscriber, which is fed by hand and touches no server, and with ours, whose
messages take less to parse, as FastStream itself sets it up: with its lock and its acknowledgements, which ours leaves
out. The faster of the two is the baseline for everything else.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

from faststream.redis import RedisBroker

from benchmarks.adapters.payload import BODY, Order
from benchmarks.lab import Bench, Lab
from benchmarks.results import Table
from benchmarks.scenarios.draining import drained
from benchmarks.systems import OURS_QUIET
from nightmail import Delivery, OutboxBroker
from nightmail.broker._upstream import LoggerProto, SubscriberUsecase
from nightmail.broker.received import Received

ALONE = "FastStream alone"


async def dispatch(lab: Lab, store: str) -> None:
    """A drain through a store, and FastStream alone, in turn."""
    count = lab.choose(10_000, 3000, 100)
    table = Table("dispatch", "typed handler", store, "messages/s")
    async with lab.benches([OURS_QUIET], store) as benches:

        async def both(bench: Bench) -> float:
            rate = await drained(lab, bench, "typed")
            table.row(ALONE).values.append(await faststream_rate(count))
            return rate

        await lab.interleave(table, benches, both, lab.choose(3, 1))


async def faststream_rate(count: int) -> float:
    """Messages a second, awaiting one `consume` after the other."""
    return max(await _redis(count), await _ours(count))


async def _redis(count: int) -> float:
    broker = RedisBroker(logger=cast("LoggerProto", None))  # None is what turns logging off

    @broker.subscriber(list="orders")
    async def take(order: Order) -> None: ...

    (subscriber,) = broker.subscribers
    await ready(subscriber)
    data = json.dumps(BODY).encode()
    raw: Any = {"type": "list", "channel": "orders", "data": data}
    return await _rate(subscriber, lambda: raw, count)


async def _ours(count: int) -> float:
    broker = OutboxBroker("memory://", logger=None)

    @broker.subscriber("orders")
    async def take(order: Order) -> None: ...

    (subscriber,) = broker.subscribers
    await ready(subscriber)
    return await _rate(subscriber, lambda: received(broker), count)


def received(broker: OutboxBroker) -> Received:
    """One and the same order, as it comes from the store."""
    return Received(_DELIVERY, broker.store)


_NOW = datetime.now(UTC)
_DELIVERY = Delivery(
    id=1,
    token=uuid4(),
    queue="orders",
    body=json.dumps(BODY).encode(),
    encoded_headers='{"content-type":"application/json","correlation_id":"c-1"}',
    timer_id=None,
    ordering_key=None,
    priority=0,
    due_at=_NOW,
    published_at=_NOW,
    claimed_at=_NOW,
    expires_at=None,
    attempts=0,
    deliveries=1,
    first_attempt_at=None,
    last_attempt_at=None,
    superseded=False,
)


async def ready(subscriber: Any) -> None:
    """Set a subscriber up as starting it would, without the loop that would feed it."""
    subscriber._outer_config.logger._setup(subscriber._outer_config.context)
    await SubscriberUsecase.start(subscriber)
    subscriber.running = True


async def _rate(subscriber: Any, raw: Any, count: int) -> float:
    """Messages a second. The handler's effect is checked: FastStream swallows what a broken set-up raises."""
    for _ in range(count // 10):
        await subscriber.consume(raw())
    begun = time.perf_counter()
    for _ in range(count):
        await subscriber.consume(raw())
    return count / (time.perf_counter() - begun)
