"""faststream-redis-timers. `best` is what its documentation offers for throughput: see benchmarks/README.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from faststream_redis_timers import TimersBroker
from redis.asyncio import Redis

from benchmarks.adapters.harness import Adapter, Send, Unsupported, serve
from benchmarks.adapters.payload import Order
from benchmarks.adapters.tally import Tally

BEST = {"polling_interval": 0.001, "max_polling_interval": 0.05, "max_concurrent": 50}
# It has no call for several timers, and says so: "use multiple publish() calls". So many at once.
AT_ONCE: Final = 16


class FastStreamRedisTimers(Adapter):
    """A client for publishing and one for consuming."""

    def __init__(self) -> None:
        self._publishing: Any = None
        self._client: Any = None
        self._consuming: tuple[Any, Any] | None = None

    async def open(self, url: str, profile: str) -> None:
        self._url, self._best = url, profile == "best"

    async def _publisher(self) -> Any:
        """Connected when it first publishes: a process that only consumes has no such connection."""
        if self._publishing is None:
            self._client = Redis.from_url(self._url)
            self._publishing = self._broker(self._client)
            await self._publishing.connect()
        return self._publishing

    def _broker(self, client: Any) -> Any:
        return TimersBroker(client, **({"logger": None} if self._best else {}))

    @asynccontextmanager
    async def publisher(self, how: str) -> AsyncIterator[Send]:
        if how == "driver":
            raise Unsupported("transactions of the caller")
        broker = await self._publisher()

        async def send(body: dict[str, Any], queue: str, due: float | None, timer: str | None) -> object:
            return await broker.publish(body, queue, activate_at=_date(due), timer_id=timer or "")

        yield send

    async def publish_many(self, bodies: list[dict[str, Any]], queue: str, due: float | None) -> None:
        left, broker = iter(bodies), await self._publisher()

        async def some() -> None:
            for body in left:
                await broker.publish(body, queue, activate_at=_date(due))

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def start(self, handlers: Mapping[str, str], tallies: Mapping[str, Tally]) -> None:
        client = Redis.from_url(self._url)
        broker = self._broker(client)
        for queue, kind in handlers.items():
            self._subscribe(broker, queue, kind, tallies[queue])
        self._consuming = broker, client
        await broker.start()

    def _subscribe(self, broker: Any, queue: str, kind: str, tally: Tally) -> None:
        subscriber = broker.subscriber(queue, **(BEST if self._best else {}))
        match kind:
            case "typed":

                @subscriber
                async def take(order: Order) -> None:
                    tally.one(order.total)

            case "sync":

                @subscriber
                def take_in_a_thread(order: Order) -> None:
                    tally.one_in_a_thread(order.total)

            case "hang":

                @subscriber
                async def never_return(order: Order) -> None:
                    tally.one(order.total)
                    await asyncio.Event().wait()

            case _:
                raise Unsupported(f"{kind} handler")

    async def stop(self) -> None:
        if self._consuming is not None:
            broker, client = self._consuming
            self._consuming = None
            await broker.stop()
            await client.aclose()

    async def close(self) -> None:
        await self.stop()
        if self._client is not None:
            await self._client.aclose()


def _date(due: float | None) -> datetime | None:
    return None if due is None else datetime.fromtimestamp(due, UTC)


if __name__ == "__main__":
    serve(FastStreamRedisTimers())
