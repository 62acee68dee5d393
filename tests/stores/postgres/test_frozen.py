"""Stopping while the server does not answer."""

from __future__ import annotations

import pytest

from testkit.servers.postgres import Postgres
from tests.stores.frozen import stops_in_time

pytestmark = pytest.mark.postgres


async def test_a_server_that_hangs_does_not_hang_the_shutdown(
    postgres_server: Postgres, postgres_url: str
) -> None:
    await stops_in_time(postgres_url, postgres_server)
