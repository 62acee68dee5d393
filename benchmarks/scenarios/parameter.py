"""What it costs a handler to ask for its message: with our annotation, and with FastStream's own context lookup."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

from faststream import Context

from benchmarks.adapters.payload import Order
from benchmarks.lab import Lab
from benchmarks.results import Table
from benchmarks.scenarios.dispatch import ready, received
from nightmail import OutboxBroker
from nightmail.annotations import OutboxMessage
from nightmail.broker.message import OutboxMessage as Message

CASE = "our message in a handler"
ALONE, OURS, STOCK = "a dispatch without it", "OutboxMessage adds", "the context lookup of FastStream adds"

StockMessage = Annotated[Message, Context("message")]


async def parameter(lab: Lab, store: str) -> None:
    """Microseconds of processor time that the parameter adds to a dispatch from memory.

    The difference of two figures that each vary more than that: so the best of several rounds of each, since whatever
    disturbs a round only adds to it.
    """

    async def bare(order: Order) -> None: ...

    async def ours(order: Order, msg: OutboxMessage) -> None: ...

    async def stock(order: Order, msg: StockMessage) -> None: ...

    count = lab.choose(5000, 1000, 100)
    table = Table("parameter", CASE, store, "us", less_is_better=True)
    lab.results.tables.append(table)
    await _microseconds(bare, count)  # What is imported and compiled only once.
    rounds = [
        [await _microseconds(handler, count) for handler in (bare, ours, stock)]
        for _ in range(lab.choose(15, 5))
    ]
    alone, with_ours, with_stock = (min(values) for values in zip(*rounds, strict=True))
    table.row(ALONE).values.append(alone)
    table.row(OURS).values.append(with_ours - alone)
    table.row(STOCK).values.append(with_stock - alone)


async def _microseconds(handler: Callable[..., Any], count: int) -> float:
    broker = OutboxBroker("memory://", logger=None)
    subscriber = broker.subscriber("orders")
    subscriber(handler)
    await ready(subscriber)
    begun = (
        time.process_time()
    )  # Not by the clock on the wall: nothing here waits, and others may use the processor.
    for _ in range(count):
        await subscriber.consume(received(broker))
    return (time.process_time() - begun) / count * 1_000_000
