"""The commands on Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.cli.on_a_store import CommandsOnAStore
from tests.cli.operating_on_a_store import OperatingOnAStore
from tests.cli.support import migrated, nightmail

pytestmark = pytest.mark.postgres


class TestCommandsOnPostgres(CommandsOnAStore):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url


class TestOperatingOnPostgres(OperatingOnAStore):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url


@pytest.fixture
def without_rights(postgres_url: str) -> Iterator[str]:
    """The same database, for an account that may do nothing in it."""
    migrated(postgres_url)

    async def execute(statements: str) -> None:
        owner = await asyncpg.connect(postgres_url)
        await owner.execute(statements)
        await owner.close()

    asyncio.run(execute("drop role if exists passer_by; create role passer_by login password 'hunter2'"))
    parts = urlsplit(postgres_url)
    yield f"postgresql://passer_by:hunter2@{parts.hostname}:{parts.port}{parts.path}"
    asyncio.run(execute("drop owned by passer_by; drop role passer_by"))


@pytest.mark.parametrize(
    "command",
    [["status"], ["list"], ["show", "1"], ["publish", "orders", "7"], ["dead", "list"], ["dead", "groups"]],
)
def test_an_account_without_rights_is_told_so_in_one_line(without_rights: str, command: list[str]) -> None:
    ran = nightmail(*command, url=without_rights)

    assert ran.code == 5, ran.err
    assert "may not" in ran.refusal or "GRANT" in ran.refusal
    assert "hunter2" not in ran.err


def test_a_dropped_index_keeps_no_one_from_looking(postgres_url: str) -> None:
    migrated(postgres_url)

    async def drop() -> None:
        owner = await asyncpg.connect(postgres_url)
        await owner.execute("drop index nightmail_dead_at")
        await owner.close()

    asyncio.run(drop())

    assert nightmail("check", url=postgres_url).code == 4
    assert "nightmail_dead_at" in nightmail("check", "--json", url=postgres_url).answer["differences"][0]
    assert nightmail("status", "--over", "0", url=postgres_url).code == 0
