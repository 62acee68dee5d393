"""The server's clock decides what is due, whatever ours says."""

from __future__ import annotations

import pytest

from testkit.servers.mariadb import MariaDB
from tests.stores.mysql.support import MySQLBackend
from tests.stores.shared.server_clocks import ServerClocks

pytestmark = pytest.mark.mysql


class TestServerClocks(ServerClocks):
    """On this store."""

    server = MariaDB
    described_by = MySQLBackend
