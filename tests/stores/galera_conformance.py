"""The contract on a Galera cluster, though every process is on another node.

Not among the tests that run by themselves (`pytest tests/stores/galera_conformance.py` runs it): it does not hold
yet. A unique key over a queue and a column that may be null makes Galera refuse commits that touch different rows, so
that large claims lose against small ones on other nodes, and a caller's plain publish is refused (1213) now and then.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytest_asyncio

from nightmail.testing.conformance import Harness, StoreConformance
from testkit.servers.galera import Galera
from tests.stores.test_galera import LOCKS, GaleraHarness

pytestmark = [pytest.mark.mysql, pytest.mark.slow]
pytest_plugins = ["testkit.cluster_fixtures"]


@pytest.fixture(scope="module")
def database(galera: Galera) -> Iterator[list[str]]:
    """One for all tests here: its URL on each node."""
    galera.revive()
    with galera.fresh_database() as urls:
        yield urls


class TestGalera(StoreConformance):
    """Each store is on another node than the one before it."""

    @pytest_asyncio.fixture
    async def harness(self, database: list[str]) -> Harness:  # type: ignore[override]
        harness = GaleraHarness(database)
        await harness.make_empty()
        return harness


# Among processes on one node these hold, and are tested there.
for _name in LOCKS:
    setattr(TestGalera, _name, None)
