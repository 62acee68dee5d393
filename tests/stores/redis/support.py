"""The harness that drives the Redis store through the conformance suite, and words for tests that only it has."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NoReturn, Unpack
from uuid import uuid4

from redis.asyncio import Redis

from nightmail.limits import MAX_BODY_BYTES
from nightmail.message import Delivery, Message
from nightmail.outcome import Done, WriteResult
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore
from nightmail.testing.conformance import Harness
from nightmail.testing.conformance.build import MessageOptions
from tests.stores.documented_rights import acl_rules, url_as

QUEUE = "orders"
LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class RedisHarness(Harness):
    """One database, empty. There are no transactions in the suite's sense."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    async def open(self, *, keep_delivered: bool = False, max_body_bytes: int = MAX_BODY_BYTES) -> RedisStore:
        store = RedisStore(
            self.url, clock=self.clock, keep_delivered=keep_delivered, max_body_bytes=max_body_bytes
        )
        await store.open()
        await store.migrate()
        return store

    def unopened(self) -> RedisStore:
        return RedisStore(self.url, clock=self.clock)

    def transaction(self, *, repeatable_read: bool = False) -> NoReturn:
        raise NotImplementedError

    async def write(self, transaction: Any, value: str) -> None:
        raise NotImplementedError

    async def written(self) -> list[str]:
        raise NotImplementedError

    def outside_any_transaction(self) -> NoReturn:
        raise NotImplementedError


@asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[Any]:
    """A client of somebody else's."""
    own = Redis.from_url(url, **options)
    try:
        yield own
    finally:
        await own.aclose()


@asynccontextmanager
async def account(url: str, *roles: str, also: Sequence[str] = ()) -> AsyncIterator[str]:
    """The URL of a new account that is what the documentation makes these roles."""
    name = f"nightmail_{secrets.token_hex(4)}"
    async with client(url) as own:
        await own.execute_command("ACL", "SETUSER", name, *acl_rules(*roles), *also)
        try:
            yield url_as(url, name)
        finally:
            await own.execute_command("ACL", "DELUSER", name)


@asynccontextmanager
async def open_store(source: Any, **options: Any) -> AsyncIterator[RedisStore]:
    """A store by the server's clock, migrated and open."""
    store = RedisStore(source, **options)
    await store.open()
    try:
        await store.migrate()
        yield store
    finally:
        await store.close()


def message(body: bytes = b"hello", **options: Unpack[MessageOptions]) -> Message:
    options.setdefault("queue", QUEUE)
    return Message(body=body, **options)


async def claim(store: RedisStore, *, limit: int = 10, queue: str = QUEUE) -> list[Delivery]:
    claimed = await store.claim([queue], limit=limit, lease=LEASE, token=uuid4())
    return list(claimed.deliveries)


async def done(store: RedisStore, deliveries: list[Delivery]) -> list[WriteResult]:
    return await store.settle([Settlement(delivery, Done()) for delivery in deliveries])


def transaction(store: RedisStore, deliveries: Sequence[Delivery], own: object) -> Any:
    """`RedisStore.transaction`, without the driver's types: to them every queued command is to be awaited."""
    return store.transaction(deliveries, own)


async def until(condition: Callable[[], bool | Awaitable[bool]], *, within: float = 20.0) -> None:
    """Return once this holds; it takes long only when it fails."""
    async with asyncio.timeout(within):
        while True:
            holds = condition()
            if await holds if isinstance(holds, Awaitable) else holds:
                return
            await asyncio.sleep(0.01)
