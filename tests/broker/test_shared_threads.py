"""Synchronous dependencies run on anyio's threads. Too few of them are logged at the start, and found by `doctor`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import pytest
from faststream import Depends

from nightmail import OutboxBroker
from nightmail.controls import WorkerReport
from nightmail.findings import Code
from nightmail.operations.doctor import diagnose
from nightmail.stores.memory import MemoryStore
from tests.broker.support import started

Dependency = Callable[..., Any]


def user() -> str:
    return "Ada"


async def tenant() -> str:
    return "shop"


class Told(MemoryStore):
    """Knows when a worker has reported itself."""

    def __init__(self) -> None:
        super().__init__()
        self.of_a_worker = asyncio.Event()

    async def report(self, worker: WorkerReport) -> None:
        await super().report(worker)
        self.of_a_worker.set()


async def found_while_it_runs(dependency: Dependency, max_workers: int = 41) -> set[Code]:
    store = Told()
    broker = OutboxBroker(store, logger=logging.getLogger("shared threads"))

    @broker.subscriber("orders", max_workers=max_workers)
    async def handle(n: int, found: str = Depends(dependency)) -> None:
        """Does nothing."""

    async with started(broker):
        await store.of_a_worker.wait()
        return {each.code for each in await diagnose(store)}


async def test_too_few_are_told_of_at_the_start_and_found_until_there_are_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await found_while_it_runs(user) == {Code.THREADS_SHORT}
    assert "max_workers is 41, but synchronous dependencies (user) run on anyio's threads, 40 " in caplog.text

    caplog.clear()
    anyio.to_thread.current_default_thread_limiter().total_tokens = 41
    assert await found_while_it_runs(user) == set()
    assert caplog.text == ""


@pytest.mark.parametrize(("dependency", "max_workers"), [(user, 40), (tenant, 41)])
async def test_as_many_as_there_may_be_handlers_are_enough_and_what_does_not_block_needs_none(
    dependency: Dependency, max_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert await found_while_it_runs(dependency, max_workers) == set()
    assert caplog.text == ""


async def test_no_limit_is_enough() -> None:
    anyio.to_thread.current_default_thread_limiter().total_tokens = float("inf")

    assert await found_while_it_runs(user) == set()
