"""For tests: a broker on virtual time, a clock to move, and the suite that proves a store."""

from nightmail.testing.broker import TestOutboxBroker
from nightmail.testing.clock import ManualClock
from nightmail.testing.record import Published

__all__ = ["ManualClock", "Published", "TestOutboxBroker"]
