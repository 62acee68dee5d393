"""Faults, on an SQLite file that several processes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.place import Place
from tests.faults import short

pytestmark = pytest.mark.sqlite


async def test_killed_processes_lose_nothing(tmp_path: Path) -> None:
    await short.kills(Place("sqlite", f"sqlite:///{tmp_path / 'messages.db'}"), tmp_path)
