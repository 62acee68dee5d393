"""Every error on our connections is one of ours: it names the place and what was said, and no secret."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from nightmail.errors import NightmailError, PublishUncertain, StoreUnavailable
from nightmail.stores.redis import RedisStore
from nightmail.testing.conformance.build import QUEUE, message
from testkit.pytest_plugin import provide
from testkit.servers.redis import Redis
from tests.stores.redis.support import client, open_store
from tests.stores.support import claim, until

pytestmark = pytest.mark.redis


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def own_server() -> Iterator[Redis]:
    """A server of this test alone, whose settings it may change."""
    with provide(Redis()) as server:
        yield server


# ------------------------------------------------------------------------------------ cannot connect


async def refused_at(url: str) -> str:
    async with opened(url) as store:
        with pytest.raises(StoreUnavailable) as refused:
            await store.ping()
    assert isinstance(refused.value.__cause__, Exception)
    return str(refused.value)


async def test_a_refused_connection_names_host_port_database_and_user() -> None:
    said = await refused_at("redis://ada:hush-hush@127.0.0.1:1/3")

    assert said.startswith("cannot connect to Redis at 127.0.0.1:1, database 3, user ada: ")
    assert "refused" in said.lower()
    assert "hush" not in said


async def test_an_unknown_host_is_named() -> None:
    said = await refused_at("redis://:hush-hush@no-such-host.invalid:6379")

    assert "no-such-host.invalid:6379, database 0, user default" in said
    assert "hush" not in said


async def test_a_wrong_password_is_told_in_the_servers_words(redis_url: str) -> None:
    said = await refused_at(redis_url.replace("://", "://ada:hush-hush@"))

    assert "user ada" in said
    assert "invalid username-password pair" in said
    assert "hush" not in said


async def test_a_database_that_does_not_exist_is_told_in_the_servers_words(redis_url: str) -> None:
    place = urlsplit(redis_url)._replace(path="/9999").geturl()

    said = await refused_at(place)

    assert "database 9999" in said
    assert "out of range" in said


async def test_a_server_that_does_not_speak_tls_is_told(redis_url: str) -> None:
    said = await refused_at(redis_url.replace("redis://", "rediss://"))

    assert "cannot connect to Redis at 127.0.0.1" in said


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://:hush@localhost?ssl_ca_certs=/ca.pem", "rediss://"),
        ("redis+cluster://:hush@localhost?ssl_cert_reqs=required", "rediss://"),
        ("redis://:hush@localhost?ssl=true", "rediss://"),
        ("rediss://:hush@localhost?ssl=false", "cannot say ssl"),
        ("redis://:hush@localhost?wait_replica=1", "cannot say wait_replica"),
        ("redis://:hush@localhost?wait_replicas=1&wait_replicas=0", "more than once"),
    ],
)
def test_options_of_a_url_that_contradict_it_are_refused(url: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as raised:
        RedisStore(url)
    assert "hush" not in str(raised.value)


# ------------------------------------------------------------------------------- refused by the server


async def out_of_replicas(own: Any) -> None:
    await own.config_set("min-replicas-to-write", "1")


async def a_replica(own: Any) -> None:
    await own.execute_command("REPLICAOF", "127.0.0.1", "1")


async def full(own: Any) -> None:
    await own.config_set("maxmemory", "1mb")


async def password(own: Any) -> None:
    await own.config_set("requirepass", "new")
    await own.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def without_scripts(own: Any) -> None:
    await own.execute_command("ACL", "SETUSER", "default", "-eval", "-evalsha")


@pytest.mark.parametrize("break_it", [out_of_replicas, a_replica, full, password, without_scripts])
async def test_whatever_the_server_refuses_is_one_of_our_errors_with_the_drivers_as_its_cause(
    own_server: Redis, break_it: Any
) -> None:
    async with client(own_server.url) as own, open_store(own_server.url) as store:
        await store.publish(message(b"before"))
        await break_it(own)

        for verb in (
            lambda: store.publish(message(queue="new")),
            lambda: store.publish(message(timer_id="t")),
            lambda: store.publish_batch([message()] * 2),
        ):
            with pytest.raises(NightmailError) as refused:
                await verb()
            cause = refused.value.__cause__
            assert isinstance(cause, RedisError | OSError), refused.value


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("'NoneType' object has no attribute 'readuntil'"),
        IndexError("index out of range"),
        RuntimeError("read() called while another coroutine is already waiting for incoming data"),
        asyncio.IncompleteReadError(b"", 4),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_else_the_driver_raises_means_that_the_connection_is_lost(
    redis_url: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(redis_url) as store:
        await store.publish(message())

        async def fails(*_: Any, **__: Any) -> None:
            raise error

        for verb, ours in (
            (lambda: store.publish(message()), PublishUncertain),
            (store.stats, StoreUnavailable),
        ):
            with monkeypatch.context() as patch, pytest.raises(StoreUnavailable) as raised:
                patch.setattr(AbstractConnection, "read_response", fails)
                await verb()
            assert type(raised.value) is ours
            assert raised.value.__cause__ is error
        assert await store.publish(message(b"and on")) is not None


async def test_a_connection_that_the_server_ends_is_one_of_our_errors(redis_url: str) -> None:
    async with client(redis_url) as own, open_store(redis_url) as store:
        await store.publish(message())

        async def end_all() -> None:
            for found in await own.client_list():
                if found["name"].startswith("nightmail"):
                    await own.execute_command("CLIENT", "KILL", "ID", found["id"])

        async def verb() -> BaseException | None:
            try:
                await asyncio.gather(store.publish(message()), claim(store, queue="none"), store.stats())
            except NightmailError as error:
                return error
            return None

        for _ in range(30):
            await asyncio.gather(end_all(), verb())


# --------------------------------------------------------------------------------------- half open


async def test_a_listener_whose_server_stopped_answering_is_noticed(
    redis_server: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.stores.redis.listen.PROBE_EVERY", 0.05)
    monkeypatch.setattr("nightmail.stores.redis.listen.PROBE_SECONDS", 0.2)
    async with open_store(redis_url) as store:
        with store.listen([QUEUE]) as bell:
            await until(lambda: store.listening)
            bell.clear()
            await asyncio.to_thread(redis_server.pause)
            try:
                await until(lambda: not store.listening)
                assert store.look_interval.total_seconds() == 1
            finally:
                await asyncio.to_thread(redis_server.resume)
            await until(lambda: store.listening)
            assert await bell.wait(10)


# ------------------------------------------------------------------------------------------ closing
