"""The server's clock decides what is due, whatever ours says."""

from __future__ import annotations

import pytest

from testkit.servers import Postgres
from tests.stores.postgres.support import PostgresBackend
from tests.stores.shared.server_clocks import ServerClocks

pytestmark = pytest.mark.postgres


class TestServerClocks(ServerClocks):
    """On this store."""

    server = Postgres
    described_by = PostgresBackend
