"""A process that forks while a Postgres store is open."""

from __future__ import annotations

import pytest

from tests.stores.forking import check_forking

pytestmark = pytest.mark.postgres


def test_a_forked_child_is_told_to_open_the_store_itself(postgres_url: str) -> None:
    check_forking(postgres_url)
