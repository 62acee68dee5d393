"""Secrets stay in the SQLite store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stores.shared.canaries import Canaries, CanariesOnTheCommandLine

pytestmark = pytest.mark.sqlite


class TestCanaries(Canaries):
    """On this store."""

    async def break_down(self, backend: Any) -> None:
        """Other software drops the table."""
        await backend.run("DROP TABLE nightmail_messages")

    async def come_back(self, backend: Any) -> None:
        async with backend.opened():
            pass


class TestCanariesOnTheCommandLine(CanariesOnTheCommandLine):
    """On this store."""
