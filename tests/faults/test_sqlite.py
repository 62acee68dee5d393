"""Faults, on an SQLite file that several processes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.place import Place
from tests.faults import short

pytestmark = pytest.mark.sqlite


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("sqlite", f"sqlite:///{tmp_path / 'messages.db'}")


async def test_killed_processes_lose_nothing(place: Place, tmp_path: Path) -> None:
    await short.kills(place, tmp_path)


async def test_a_paused_queue_is_paused_in_every_process(place: Place, tmp_path: Path) -> None:
    await short.paused(place, tmp_path)
