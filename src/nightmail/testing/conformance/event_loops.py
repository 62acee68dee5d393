"""One store, used from another event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from nightmail.errors import StoreError
from nightmail.store import FullStore
from nightmail.testing.conformance.build import claim_bodies, message, promptly, stored


class EventLoopsConformance:
    """A store is used on the event loop on which it was opened."""

    async def test_another_event_loop_is_served_or_told_so_in_one_line(self, store: FullStore) -> None:
        await stored(store, message(b"here"))

        def elsewhere() -> Any:
            # On a thread of its own: `asyncio.run` in a worker of a web server, or in a notebook.
            try:
                return asyncio.run(_with_timeout(store))
            except StoreError as error:
                return error

        answer = await asyncio.to_thread(elsewhere)

        expected = [b"here"] if isinstance(answer, StoreError) else [b"here", b"there"]
        assert not isinstance(answer, StoreError) or "\n" not in str(answer)
        async with promptly():
            assert await claim_bodies(store) == expected


async def _with_timeout(store: FullStore) -> int | None:
    async with asyncio.timeout(10):
        return await store.publish(message(b"there"))
