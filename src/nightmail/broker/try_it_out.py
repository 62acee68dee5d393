"""Lets FastStream's "try it out" find the test broker in a service, without loading it there.

FastStream looks in a registry, which is filled only by defining a class. The class defined here makes way for the real
one when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nightmail.broker._upstream import TestBroker
from nightmail.broker.broker import OutboxBroker


def offer_test_broker(load: Callable[[], type[TestBroker[OutboxBroker, Any]]]) -> None:
    """Have FastStream find, for an `OutboxBroker`, the test broker that `load` imports."""

    class OnDemand(TestBroker[OutboxBroker, Any], broker=OutboxBroker):
        def __new__(cls, *brokers: OutboxBroker, **options: Any) -> Any:
            return load()(*brokers, **options)
