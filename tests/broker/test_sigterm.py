"""SIGTERM under load, with `def` handlers: no message runs beside itself in one process, and none is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from nightmail import OutboxBroker

PATIENCE = 90.0


def overlaps(journal: str) -> int:
    """How many runs began while another of the same message ran in the same process."""
    found, running = 0, Counter[tuple[str, str]]()
    for line in journal.splitlines():
        event, process, which = line.split()
        if event == "began":
            found += running[process, which] > 0
            running[process, which] += 1
        else:
            running[process, which] -= 1
    return found


async def run(url: str, journal: Path, *, processes: int, signals: int, wait: float) -> int:
    """So many processes one after the other, each told to stop so many times; how often they were in fact."""
    told = 0
    for _ in range(processes):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.broker.terminated", url, str(journal), str(signals),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE + signals * 5):
            while await process.stdout.readline():
                await asyncio.sleep(random.uniform(0, wait))
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                    told += 1
            assert await process.wait() in {0, -signal.SIGTERM}
    return told


def test_an_overlap_is_found() -> None:
    assert overlaps("began 1 7\nended 1 7\nbegan 1 7\nbegan 2 7\nended 1 7\n") == 0
    assert overlaps("began 1 7\nbegan 1 7\nended 1 7\n") == 1


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
async def test_terminated_under_load_no_message_runs_beside_itself(url: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with OutboxBroker(url, create_tables=True, logger=None) as broker:
        sent = await broker.publish_batch(*range(200), queue="q")

        await run(url, journal, processes=2, signals=4, wait=0.3)

        assert overlaps(journal.read_text()) == 0
        stats = await broker.stats()
        seen = {line.split()[2] for line in journal.read_text().splitlines()}
        waiting = sum(each.ready + each.scheduled + each.running + each.dead for each in stats.values())
        assert len(seen) + waiting >= len(sent)
