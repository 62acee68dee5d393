"""The commands on Redis."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from redis import Redis

from tests.cli.on_a_store import CommandsOnAStore
from tests.cli.operating_on_a_store import OperatingOnAStore
from tests.cli.support import migrated, nightmail

pytestmark = pytest.mark.redis


class TestCommandsOnRedis(CommandsOnAStore):
    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url


class TestOperatingOnRedis(OperatingOnAStore):
    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url


def test_an_account_without_rights_is_told_so_in_one_line(redis_url: str) -> None:
    migrated(redis_url)
    owner = Redis.from_url(redis_url)
    owner.acl_setuser(
        "passer_by",
        enabled=True,
        passwords=["+hunter2"],
        keys=["*"],
        channels=["*"],
        commands=["+@all", "-hmget", "-zrange"],
    )
    parts = urlsplit(redis_url)
    try:
        url = f"redis://passer_by:hunter2@{parts.hostname}:{parts.port}{parts.path}"
        for command in (["status"], ["list"], ["dead", "groups"]):
            ran = nightmail(*command, url=url)
            assert ran.code == 5, ran.err
            assert "may not use" in ran.err.splitlines()[-1]
            assert "hunter2" not in ran.err
    finally:
        owner.acl_deluser("passer_by")
        owner.close()
