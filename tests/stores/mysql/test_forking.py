"""A process that forks while a MySQL store is open."""

from __future__ import annotations

import pytest

from tests.stores.forking import check_forking

pytestmark = pytest.mark.mysql


def test_a_forked_child_is_told_to_open_the_store_itself(mysql_url: str) -> None:
    check_forking(mysql_url)
