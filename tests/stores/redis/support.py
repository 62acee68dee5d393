"""The harness that drives the Redis store through the conformance suite, and words for tests that only it has."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NoReturn

from redis.asyncio import Redis, RedisCluster

from nightmail.limits import MAX_BODY_BYTES
from nightmail.message import Delivery
from nightmail.stores.redis import RedisStore
from nightmail.testing.conformance import Harness
from testkit.servers.redis import Redis as RedisServer
from tests.stores.documented_rights import acl_rules, url_as
from tests.stores.shared.backend import ServerBackend
from tests.stores.support import opened


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
    """A client that is not the store's."""
    own = Redis.from_url(url, **options)
    try:
        yield own
    finally:
        await own.aclose()


@asynccontextmanager
async def cluster_client(url: str) -> AsyncIterator[Any]:
    """A client of a cluster."""
    own = RedisCluster.from_url(url.replace("redis+cluster://", "redis://"))
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


def open_store(source: Any, **options: Any) -> AbstractAsyncContextManager[RedisStore]:
    """A store by the server's clock, migrated and open."""
    return opened(RedisStore(source, **options))


def transaction(store: RedisStore, deliveries: Sequence[Delivery], own: object) -> Any:
    """`RedisStore.transaction`, without the driver's types: to them every queued command is to be awaited."""
    return store.transaction(deliveries, own)


class RedisBackend(ServerBackend):
    """One empty database of a Redis."""

    def __init__(self, url: str, server: RedisServer) -> None:
        super().__init__(url)
        self.server: RedisServer = server

    def store(self, **options: Any) -> RedisStore:
        return RedisStore(self.url, **options)

    async def connections(self) -> int:
        async with client(self.url) as own:
            return sum(found["name"].startswith("nightmail") for found in await own.client_list())
