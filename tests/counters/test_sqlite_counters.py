"""What a message costs on SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from nightmail import OutboxBroker
from nightmail.stores.sqlite import SQLiteStore, begin_immediate, link
from nightmail.testing.clock import ManualClock
from tests.counters.baseline import compare
from tests.counters.connections import assert_few_connections
from tests.counters.functions import Functions
from tests.counters.idle import assert_frugal_while_idle
from tests.counters.servers import SQLiteMeter
from tests.counters.verbs import Place, costs
from tests.golden.record import Record
from tests.golden.sqlite_calls import recorded
from tests.stores.support import opened

pytestmark = pytest.mark.sqlite


async def test_what_a_message_costs_on_sqlite_is_what_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How many waits for the lock are forgotten with each depends on how fast the machine is.
    monkeypatch.setattr(link, "LATELY", 3600.0)
    file = tmp_path / "messages.db"
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    begin_immediate(engine)
    functions, meter = Functions(), SQLiteMeter(file)
    # Its connections belong to threads, and are opened on them.
    with functions.on_threads_too(), meter.counting_steps():
        store = SQLiteStore(file, clock=ManualClock())
        async with opened(store), OutboxBroker(store, logger=None) as broker:
            found = await costs(Place(broker, lambda: AsyncSession(engine), meter), functions)
    await engine.dispose()

    compare("sqlite", f"SQLite {sqlite3.sqlite_version}", found)


async def test_idle_subscribers_on_sqlite_only_look_every_five_seconds(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'messages.db'}"
    async with OutboxBroker(url, create_tables=True, logger=None):
        pass
    record = Record()
    with recorded(record):
        await assert_frugal_while_idle("sqlite", url, record)


@pytest.mark.parametrize("subscribers", [1, 10])
async def test_the_number_of_connections_to_sqlite_does_not_grow_with_the_subscribers(
    tmp_path: Path, subscribers: int
) -> None:
    record = Record()
    with recorded(record):
        await assert_few_connections("sqlite", f"sqlite:///{tmp_path / 'messages.db'}", record, subscribers)
