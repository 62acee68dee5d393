"""Faults, on MariaDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.place import Place
from testkit.servers.mariadb import MariaDB
from tests.faults import short

pytestmark = pytest.mark.mysql


@pytest.fixture
def place(mysql_url: str, mariadb_server: MariaDB) -> Place:
    return Place("mariadb", mysql_url, mariadb_server)


async def test_killed_processes_lose_nothing(place: Place, tmp_path: Path) -> None:
    await short.kills(place, tmp_path)


async def test_lost_replies_lose_nothing(place: Place, tmp_path: Path) -> None:
    await short.lost_replies(place, tmp_path)


async def test_a_paused_queue_is_paused_in_every_process(place: Place, tmp_path: Path) -> None:
    await short.paused(place, tmp_path)


async def test_a_publish_that_may_be_stored_is_uncertain_and_safe_to_repeat(
    place: Place, tmp_path: Path
) -> None:
    await short.uncertain_publishes(place, tmp_path)
