"""A server whose clock is not ours: what is due is due by the server's, and so is the end of a lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from faults.clock import Clock
from nightmail.store import FullStore
from nightmail.testing.conformance.build import HOUR, LEASE, claim_all, message
from testkit.pytest_plugin import provide
from testkit.servers.base import Server

ServerT = TypeVar("ServerT", bound=Server)
AHEAD: Final = timedelta(hours=2)


@contextmanager
def two_hours_ahead(make: Callable[[Mapping[str, str]], ServerT]) -> Iterator[ServerT]:
    """A server whose clock was set forward while it ran: one that is made by such a clock may wait for hours."""
    # Not pytest's directory: the server has a user of its own, who must get to it.
    with TemporaryDirectory() as directory:
        clock = Clock(Path(directory), "server")
        with provide(make(clock.environment)) as server:
            clock.set(int(AHEAD.total_seconds()))
            try:
                yield server
            finally:
                clock.set(0)


async def check_that_the_servers_clock_decides(store: FullStore) -> None:
    """By ours, the first of these messages is due in an hour."""
    await store.publish(message(b"at a time", due=datetime.now(UTC) + HOUR))
    await store.publish(message(b"after a time", due=HOUR))

    (delivery,) = await claim_all(store)
    again = await claim_all(store)
    (lease,) = await store.leases()
    (pending,) = await store.peek()

    assert (delivery.body, again) == (b"at a time", [])
    assert pending.body == b"after a time"
    assert abs(lease.lease_until - datetime.now(UTC) - AHEAD - LEASE) < timedelta(minutes=1)
    assert abs(pending.due_at - datetime.now(UTC) - AHEAD - HOUR) < timedelta(minutes=1)
