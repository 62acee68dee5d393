"""The commands on MariaDB."""

from __future__ import annotations

import pytest

from tests.cli.on_a_store import CommandsOnAStore
from tests.cli.operating_on_a_store import OperatingOnAStore

pytestmark = pytest.mark.mysql


class TestCommandsOnMariaDB(CommandsOnAStore):
    @pytest.fixture
    def url(self, mysql_url: str) -> str:
        return mysql_url


class TestOperatingOnMariaDB(OperatingOnAStore):
    @pytest.fixture
    def url(self, mysql_url: str) -> str:
        return mysql_url
