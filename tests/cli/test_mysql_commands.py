"""The commands on MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pymysql
import pytest

from tests.cli.on_a_store import CommandsOnAStore
from tests.cli.operating_on_a_store import OperatingOnAStore
from tests.cli.support import migrated, nightmail

pytestmark = pytest.mark.mysql


class TestCommandsOnMariaDB(CommandsOnAStore):
    @pytest.fixture
    def url(self, mysql_url: str) -> str:
        return mysql_url


class TestOperatingOnMariaDB(OperatingOnAStore):
    @pytest.fixture
    def url(self, mysql_url: str) -> str:
        return mysql_url


@pytest.fixture
def without_rights(mysql_url: str) -> Iterator[str]:
    """The same database, for an account that may connect, and nothing else."""
    migrated(mysql_url)
    parts = urlsplit(mysql_url)
    database = parts.path.strip("/")
    owner = pymysql.connect(
        host=parts.hostname, port=parts.port or 3306, user=parts.username, password=parts.password or ""
    )
    with closing(owner), owner.cursor() as cursor:
        cursor.execute("drop user if exists passer_by")
        cursor.execute("create user passer_by identified by 'hunter2'")
        cursor.execute(f"grant create temporary tables on `{database}`.* to passer_by")
        yield f"mysql://passer_by:hunter2@{parts.hostname}:{parts.port}/{database}"
        cursor.execute("drop user passer_by")


def test_an_account_without_rights_is_told_so_in_one_line(without_rights: str) -> None:
    for command in (
        ["status"],
        ["list"],
        ["show", "1"],
        ["publish", "orders", "7"],
        ["cancel", "orders", "--everything", "--yes"],
        ["dead", "list"],
        ["dead", "groups"],
        ["dead", "purge", "orders", "--yes"],
        ["migrate"],
        ["check"],
    ):
        ran = nightmail(*command, url=without_rights)

        assert ran.code == 5, (command, ran.err)
        assert "docs/stores.md" in ran.refusal
        assert "hunter2" not in ran.err
