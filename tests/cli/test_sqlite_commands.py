"""The commands on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.on_a_store import CommandsOnAStore
from tests.cli.operating_on_a_store import OperatingOnAStore

pytestmark = pytest.mark.sqlite


class TestCommandsOnSQLite(CommandsOnAStore):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'messages.db'}"


class TestOperatingOnSQLite(OperatingOnAStore):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'messages.db'}"
