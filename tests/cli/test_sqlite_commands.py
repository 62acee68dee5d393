"""The commands on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightmail.message import Message
from tests.cli.on_a_store import CommandsOnAStore
from tests.cli.operating_on_a_store import OperatingOnAStore
from tests.cli.support import migrated, nightmail, publish

pytestmark = pytest.mark.sqlite


class TestCommandsOnSQLite(CommandsOnAStore):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'messages.db'}"


class TestOperatingOnSQLite(OperatingOnAStore):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'messages.db'}"


def test_a_file_that_may_not_be_written_is_told_in_one_line_and_can_be_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "messages.db"
    url = migrated(f"sqlite:///{file}")
    publish(url, Message(queue="orders", body=b"x"))
    # As the file says itself, so that it holds for root, too: byte 18 of its header is the format to write.
    with file.open("r+b") as header:
        header.seek(18)
        header.write(b"\x03")

    for command in (
        ["publish", "orders", "7"],
        ["cancel", "orders", "--everything", "--yes"],
        ["pause", "orders"],
    ):
        ran = nightmail(*command, url=url)
        assert ran.code == 5, (command, ran.err)
        assert f"this account may not write to {file}" in ran.refusal
    assert [row[0] for row in nightmail("status", "--over", "0", url=url).rows] == ["orders"]
    assert len(nightmail("list", url=url).rows) == 1
