"""A process that dies between its handler and the end of the message: the effect happens exactly once."""

from __future__ import annotations

import pytest

from nightmail import OutboxBroker
from tests.broker.callers import ledger_at
from tests.broker.crashing import KILLED, MOMENTS, main, run
from tests.broker.forked import exit_code


@pytest.mark.parametrize("url", ["sqlite", "postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("queue", ["by hand", "by dependency"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_whenever_the_process_dies_the_effect_happens_once(url: str, queue: str, moment: str) -> None:
    async with ledger_at(url) as ledger, OutboxBroker(url, create_tables=True, logger=None) as broker:
        await ledger.create()
        await broker.publish("tea", queue)

        assert await exit_code(run, url, moment) == KILLED
        await main(url)

        assert await ledger.effects() == ["tea"]
        assert await broker.stats() == {}
