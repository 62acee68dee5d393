"""Processes that may die, begun by a copy of one that has imported everything: that takes longer than what they do."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 60.0

# Not a fork of the test's own process: that has threads, and servers to look after.
_FORKED: Final = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["tests.broker.crashing", "tests.broker.sync_crashing"])


async def exit_code(function: Callable[..., None], *arguments: str) -> int | None:
    """Call this in a process of its own; how that ended."""
    process = _FORKED.Process(target=function, args=arguments)
    await asyncio.to_thread(process.start)
    try:
        await asyncio.to_thread(process.join, PATIENCE)
        return process.exitcode
    finally:
        process.kill()
        await asyncio.to_thread(process.join)
        process.close()
