"""Going on after the server was away."""

from __future__ import annotations

import pytest

from testkit.servers.postgres import Postgres
from tests.stores.postgres.support import open_store
from tests.stores.resuming import goes_on_soon_after

pytestmark = pytest.mark.postgres


async def test_a_worker_goes_on_soon_after_its_server_is_back(
    postgres_server: Postgres, postgres_url: str
) -> None:
    async with open_store(postgres_url) as store:
        await goes_on_soon_after(store, postgres_server)
