"""Nothing is locked in a MULTI: until it is executed, the lease on its message is renewed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from nightmail.engine.current import acked_in_transaction
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.stores.redis.settling import Settling
from nightmail.stores.redis.watching import WatchingPipeline
from nightmail.testing.conformance.build import QUEUE, message
from tests.stores.redis.support import client, open_store, transaction
from tests.stores.support import claim, until

pytestmark = pytest.mark.redis


async def test_the_lease_is_renewed_until_the_multi_is_executed(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    acked = threading.Event()
    handled: list[Delivery] = []
    renewals: list[WriteResult] = []
    extend, execute = Settling.extend, WatchingPipeline.execute

    async def noted(
        settling: Settling, lane: Any, deliveries: Sequence[Delivery], lease: timedelta
    ) -> list[WriteResult]:
        results = await extend(settling, lane, deliveries, lease)
        if acked.is_set():
            # Not those of a delivery that came after the lease of this one had ended.
            renewals.extend(
                result
                for delivery, result in zip(deliveries, results, strict=True)
                if delivery.token == handled[0].token
            )
        return results

    async def late(watched: WatchingPipeline, call: Any) -> Any:
        await until(lambda: len(renewals) >= 3)
        assert await claim(other, limit=1) == []
        return await execute(watched, call)

    monkeypatch.setattr(Settling, "extend", noted)
    monkeypatch.setattr(WatchingPipeline, "execute", late)
    async with (
        client(redis_url) as own,
        open_store(redis_url) as store,
        open_store(redis_url) as other,
    ):
        await store.publish(message())
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def handle(delivery: Delivery) -> None:
            handled.append(delivery)
            async with transaction(store, [delivery], own) as pipe:
                pipe.set("theirs", "written")
                acked_in_transaction([delivery])
                acked.set()
            ended.set_result(None)

        worker = Worker(store, handle, queues=[QUEUE], settings=WorkerSettings(lease=timedelta(seconds=1)))
        running = asyncio.create_task(worker.run())
        try:
            async with asyncio.timeout(30):
                await ended
        finally:
            await worker.stop()
            await running

        assert len(handled) == 1
        assert set(renewals[:3]) == {WriteResult.WRITTEN}
        assert await own.get("theirs") == b"written"
        assert await store.stats() == {}
