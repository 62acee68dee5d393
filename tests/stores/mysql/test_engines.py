"""A store on an engine whose pool has listeners."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.stores.shared.engine_listeners import EngineListeners

pytestmark = pytest.mark.mysql


class TestMySQLEngine(EngineListeners):
    """With SQLAlchemy's asyncmy."""

    @pytest_asyncio.fixture
    async def engine(self, mysql_url: str) -> AsyncIterator[AsyncEngine]:  # type: ignore[override]
        engine = create_async_engine(mysql_url.replace("mysql://", "mysql+asyncmy://"))
        yield engine
        await engine.dispose()
