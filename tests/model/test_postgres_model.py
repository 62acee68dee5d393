"""Whatever is done in whatever order, the Postgres store answers as the memory store does."""

from __future__ import annotations

import pytest

from tests.model.machine import run_model
from tests.stores.postgres.support import AsyncpgHarness

pytestmark = pytest.mark.postgres


def test_postgres_answers_as_the_memory_store_does(postgres_url: str) -> None:
    run_model(lambda: AsyncpgHarness(postgres_url))
