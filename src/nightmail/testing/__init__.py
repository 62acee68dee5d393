"""For tests: a broker on virtual time, a clock to move, and the suite that proves a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightmail.broker.testing import TestOutboxBroker

__all__ = ["TestOutboxBroker"]


def __getattr__(name: str) -> Any:
    # Imported late: the test broker imports modules of this package.
    if name == "TestOutboxBroker":
        from nightmail.broker.testing import TestOutboxBroker

        return TestOutboxBroker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
