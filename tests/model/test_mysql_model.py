"""Whatever is done in whatever order, the MySQL store answers as the memory store does."""

from __future__ import annotations

import pytest

from tests.model.machine import run_model
from tests.stores.mysql.support import DriverHarness

pytestmark = pytest.mark.mysql


def test_mysql_answers_as_the_memory_store_does(mysql_url: str) -> None:
    run_model(lambda: DriverHarness(mysql_url))
