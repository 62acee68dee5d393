"""The conformance suite: what every store does, as tests. A store that passes it keeps the contract.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def harness(self, tmp_path: Path) -> Harness:
            return MyHarness(tmp_path)

Needs pytest and pytest-asyncio, in either of its modes.
"""

from __future__ import annotations

from pkgutil import iter_modules

import pytest

# Before the parts are imported: only then do failing assertions show their values in another project's test run.
pytest.register_assert_rewrite(*(f"{__name__}.{part.name}" for part in iter_modules(__path__)))

from nightmail.testing.conformance.fixtures import StoreFixtures  # noqa: E402 - see above
from nightmail.testing.conformance.harness import Harness, RolledBack  # noqa: E402 - see above
from nightmail.testing.conformance.suite import StoreConformance  # noqa: E402 - see above

__all__ = ["Harness", "RolledBack", "StoreConformance", "StoreFixtures"]
