"""A process that dies between its `def` handler and the end of the message: the effect happens exactly once."""

from __future__ import annotations

import pytest

from nightmail import OutboxBroker
from tests.broker.forked import exit_code
from tests.broker.sync_crashing import KILLED, MOMENTS, QUEUES, run
from tests.broker.sync_ledger import sync_ledger_at


@pytest.mark.parametrize("url", ["sqlite", "postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_whenever_the_process_dies_the_effects_are_as_many_as_the_messages(
    url: str, moment: str
) -> None:
    with sync_ledger_at(url) as ledger:
        async with OutboxBroker(url, create_tables=True, logger=None) as broker:
            ledger.create()

            for queue in QUEUES:
                await broker.publish(queue, queue)
                assert await exit_code(run, url, queue, moment) == KILLED
            assert await exit_code(run, url, "any", "never") == 0

            assert ledger.effects() == sorted(QUEUES)
            assert await broker.stats() == {}
