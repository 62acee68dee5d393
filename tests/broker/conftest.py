"""Every test here runs on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nightmail import OutboxBroker
from tests.broker.callers import Ledger, ledger_at
from tests.broker.support import Heard, Make


@pytest.fixture(params=["memory", "sqlite", "postgres", "mysql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'messages.db'}"
    fresh: str = request.getfixturevalue(f"{request.param}_url")
    return fresh


@pytest.fixture
def heard() -> Heard:
    """What the engine of `make`'s brokers did."""
    return Heard()


@pytest.fixture
def make(url: str, heard: Heard) -> Make:
    """Makes a broker on that store, quiet and observed."""

    def build(**options: Any) -> OutboxBroker:
        options.setdefault("observer", heard)
        return OutboxBroker(url, create_tables=True, logger=None, **options)

    return build


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[Ledger]:
    """What the code under test has written, in a table beside the store's."""
    async with ledger_at(url) as made:
        await made.create()
        yield made
