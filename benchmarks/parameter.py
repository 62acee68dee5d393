"""What it costs a handler to ask for its message: with our annotation, and with FastStream's own context lookup."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

from faststream import Context

from benchmarks.dispatch import ready, received
from benchmarks.payload import Order
from benchmarks.report import Figure, at_most, plain
from nightmail import OutboxBroker
from nightmail.annotations import OutboxMessage
from nightmail.broker.message import OutboxMessage as Message

THIRD = 100 / 3
ROUNDS = 5

StockMessage = Annotated[Message, Context("message")]


async def parameter(count: int) -> list[Figure]:
    """Microseconds that the parameter adds to a dispatch from memory: the best of several rounds of each."""

    async def bare(order: Order) -> None: ...

    async def ours(order: Order, msg: OutboxMessage) -> None: ...

    async def stock(order: Order, msg: StockMessage) -> None: ...

    alone = with_ours = with_stock = float("inf")
    for _ in range(ROUNDS):
        alone = min(alone, await _microseconds(bare, count))
        with_ours = min(with_ours, await _microseconds(ours, count))
        with_stock = min(with_stock, await _microseconds(stock, count))
    return [
        plain("a dispatch without it", alone, "us", 1),
        plain("our OutboxMessage adds", with_ours - alone, "us", 1),
        plain("the stock context lookup adds", with_stock - alone, "us", 1),
        at_most("ours, of the stock one", 100 * (with_ours - alone) / (with_stock - alone), THIRD, "%"),
    ]


async def _microseconds(handler: Callable[..., Any], count: int) -> float:
    broker = OutboxBroker("memory://", logger=None)
    subscriber = broker.subscriber("orders")
    subscriber(handler)
    await ready(subscriber)
    begun = time.perf_counter()
    for _ in range(count):
        await subscriber.consume(received(broker))
    return (time.perf_counter() - begun) / count * 1_000_000
