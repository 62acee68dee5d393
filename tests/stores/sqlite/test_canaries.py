"""Secrets stay in the SQLite store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stores.shared.canaries import (
    BODY,
    Canaries,
    CanariesOnTheCommandLine,
    Everything,
    assert_untold,
)

pytestmark = pytest.mark.sqlite


class TestCanaries(Canaries):
    """On this store."""

    async def break_down(self, backend: Any) -> None:
        """Other software drops the table."""
        await backend.run("DROP TABLE nightmail_messages")

    async def come_back(self, backend: Any) -> None:
        async with backend.opened():
            pass


class TestCanariesOnTheCommandLine(CanariesOnTheCommandLine):
    """On this store."""


def test_a_secret_in_a_metric_would_be_seen(caplog: pytest.LogCaptureFixture) -> None:
    watching = Everything(caplog)
    counter = watching.meter_provider.get_meter("tests").create_counter("canaries")

    counter.add(1, {"body": BODY})

    with pytest.raises(AssertionError):
        assert_untold(watching.measured())
    watching.close()
