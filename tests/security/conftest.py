"""Every store, for what must hold on each of them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["memory", "sqlite", "postgres", "mysql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'messages.db'}"
    fresh: str = request.getfixturevalue(f"{request.param}_url")
    return fresh
