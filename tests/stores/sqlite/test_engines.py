"""A store on an engine whose pool has listeners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.stores.shared.engine_listeners import EngineListeners


class TestSQLiteEngine(EngineListeners):
    """With SQLAlchemy's aiosqlite."""

    @pytest_asyncio.fixture
    async def engine(self, tmp_path: Path) -> AsyncIterator[AsyncEngine]:  # type: ignore[override]
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
        yield engine
        await engine.dispose()
