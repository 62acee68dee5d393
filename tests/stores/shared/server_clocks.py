"""A server whose clock is not ours: what is due is due by the server's, and so is the end of a lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Final

import pytest

from faults.clock import Clock
from nightmail.testing.conformance.build import HOUR, LEASE, claim_all, message
from testkit.pytest_plugin import provide
from testkit.servers.base import Server
from tests.stores.shared.backend import Backend

AHEAD: Final = timedelta(hours=2)


class ServerClocks:
    """Say which server, and which backend describes a database on it."""

    server: ClassVar[Callable[..., Server]]
    described_by: ClassVar[Callable[..., Backend]]

    @pytest.fixture
    def backend(self) -> Iterator[Backend]:
        """On a server of its own, not the one of all tests."""
        with two_hours_ahead(self.server) as server:
            yield self.described_by(server.url, server)

    async def test_what_is_due_is_due_by_the_servers_clock(self, backend: Backend) -> None:
        async with backend.opened() as store:
            # By ours, the first of these is due in an hour.
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


@contextmanager
def two_hours_ahead(make: Callable[..., Server]) -> Iterator[Server]:
    """A server whose clock was set forward while it ran: one that is made by such a clock may wait for hours."""
    # Not pytest's directory: the server has a user of its own, who must get to it.
    with TemporaryDirectory() as directory:
        clock = Clock(Path(directory), "server")
        with provide(make(environment=clock.environment)) as server:
            clock.set(int(AHEAD.total_seconds()))
            try:
                yield server
            finally:
                clock.set(0)
