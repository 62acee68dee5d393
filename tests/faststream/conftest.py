"""Everything here runs on SQLite; what is marked with `on_every_store` runs on every server, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nightmail import OutboxBroker
from tests.broker.support import Heard, Make
from tests.faststream.support import Calls


@pytest.fixture
def store() -> str:
    """Which store a test runs on, unless it says otherwise."""
    return "sqlite"


@pytest.fixture
def url(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of that kind."""
    if store == "sqlite":
        return f"sqlite:///{tmp_path / 'messages.db'}"
    fresh: str = request.getfixturevalue(f"{store}_url")
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
        options.setdefault("logger", None)
        return OutboxBroker(url, create_tables=True, **options)

    return build


@pytest.fixture
def calls() -> Calls:
    """What the handlers were called with."""
    return Calls()
