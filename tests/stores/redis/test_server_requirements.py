"""Which servers are refused and why, and what replicas have to say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from nightmail.errors import PublishUncertain, StoreUnavailable, TimerExists, UnsuitableServer
from nightmail.message import OnConflict
from nightmail.stores.redis import RedisStore
from nightmail.stores.redis.link import Link
from nightmail.stores.redis.server import check_server
from nightmail.testing.conformance.build import message
from testkit.pytest_plugin import provide
from testkit.servers.redis import Redis
from tests.stores.redis.support import client, open_store
from tests.stores.support import claim, until

pytestmark = pytest.mark.redis


@pytest.fixture
def replica(redis_server: Redis) -> Iterator[Redis]:
    redis_server.revive()
    if not redis_server.ours:
        pytest.skip("a replica of a server that is not ours")
    with provide(Redis(options={"replicaof": ["127.0.0.1", redis_server.port]})) as server:
        yield server


async def _in_step(own: Any) -> bool:
    return bool((await own.info("replication")).get("slave0", {}).get("state") == "online")


async def _is_confirmed(store: RedisStore) -> bool:
    with suppress(PublishUncertain):
        return await store.publish(message()) is not None
    return False


class ScriptedWire(Link):
    """A server of which only the answers are known."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    async def ask(self, *commands: Any) -> list[Any]:
        assert len(commands) == len(self.answers)
        return list(self.answers)


def info(**facts: str) -> bytes:
    return b"# Section\r\n" + b"".join(f"{name}:{value}\r\n".encode() for name, value in facts.items())


GOOD = {"redis_version": "7.0.15", "role": "master", "cluster_enabled": "0", "maxmemory_policy": "noeviction"}


# ----------------------------------------------------------------------------------------- eviction


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_may_drop_messages_is_refused_and_the_setting_is_named(
    redis_url: str, policy: str
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await own.config_set("maxmemory-policy", policy)
        try:
            for verb in (store.check, store.migrate):
                with pytest.raises(UnsuitableServer, match=f"maxmemory-policy is {policy}.*noeviction"):
                    await verb()
        finally:
            await own.config_set("maxmemory-policy", "noeviction")
        await store.check()


async def test_where_config_is_forbidden_info_tells_the_policy(redis_server: Redis, redis_url: str) -> None:
    async with client(redis_url) as own:
        await own.execute_command(
            "ACL", "SETUSER", "careful", "on", ">secret", "~*", "&*", "+@all", "-config"
        )
        url = redis_url.replace("://", "://careful:secret@")
        try:
            async with open_store(url) as store:
                await store.check()
                await own.config_set("maxmemory-policy", "allkeys-random")
                with pytest.raises(UnsuitableServer, match="allkeys-random"):
                    await store.check()
        finally:
            await own.config_set("maxmemory-policy", "noeviction")
            await own.execute_command("ACL", "DELUSER", "careful")


async def test_where_both_are_forbidden_the_demand_is_told(caplog: pytest.LogCaptureFixture) -> None:
    refusal = Exception("NOPERM")

    await check_server(ScriptedWire(refusal, refusal), cluster=False)

    assert "maxmemory-policy is noeviction" in caplog.text
    assert "6.2 or newer" in caplog.text


async def test_a_narrow_account_is_enough(redis_url: str) -> None:
    rights = ["~{nightmail*", "&{nightmail*", "-@all", "+@connection", "+@pubsub", "+@read", "+@write"]
    rights += ["+eval", "+evalsha", "+info", "+time", "-@dangerous", "+info"]
    async with client(redis_url) as own:
        await own.execute_command("ACL", "SETUSER", "narrow", "on", ">secret", *rights)
        try:
            async with open_store(redis_url.replace("://", "://narrow:secret@")) as store:
                await store.check()
                await store.publish(message(b"narrow", timer_id="t", ordering_key="k"))
                with store.listen(["orders"]):
                    await until(lambda: store.listening)
                assert [delivery.body for delivery in await claim(store)] == [b"narrow"]
                assert len(await store.stats()) == 1
        finally:
            await own.execute_command("ACL", "DELUSER", "narrow")


# ---------------------------------------------------------------------------------- role and version


async def test_a_replica_is_refused(replica: Redis) -> None:
    store = RedisStore(replica.url)
    await store.open()
    try:
        for verb in (store.migrate, store.check):
            with pytest.raises(UnsuitableServer, match="replica"):
                await verb()
    finally:
        await store.close()


async def test_a_server_that_became_a_replica_refuses_for_now_and_nothing_is_uncertain(
    redis_server: Redis, redis_url: str
) -> None:
    with provide(Redis()) as other:
        async with open_store(redis_url) as store, client(redis_url) as own:
            await store.publish(message(b"before"))
            await own.replicaof("127.0.0.1", other.port)
            try:
                with pytest.raises(StoreUnavailable) as refused:
                    await store.publish(message(b"never"))
                assert not isinstance(refused.value, PublishUncertain)
            finally:
                await own.replicaof("NO", "ONE")


@pytest.mark.parametrize(
    ("version", "cluster", "needed"),
    [("6.0.16", False, "6.2"), ("5.0.0", False, "6.2"), ("6.2.14", True, "7.0")],
)
async def test_an_older_server_is_refused_and_the_version_is_named(
    version: str, cluster: bool, needed: str
) -> None:
    with pytest.raises(UnsuitableServer, match=f"version {version}: {needed} or newer"):
        await check_server(ScriptedWire(info(**GOOD | {"redis_version": version}), []), cluster=cluster)


@pytest.mark.parametrize(("version", "cluster"), [("6.2.0", False), ("7.0.0", True), ("8.2.1", False)])
async def test_a_newer_server_is_good(version: str, cluster: bool) -> None:
    await check_server(ScriptedWire(info(**GOOD | {"redis_version": version}), []), cluster=cluster)


async def test_a_node_of_a_cluster_is_not_a_single_server() -> None:
    with pytest.raises(UnsuitableServer, match=r"redis\+cluster://"):
        await check_server(ScriptedWire(info(**GOOD | {"cluster_enabled": "1"}), []), cluster=False)


async def test_a_single_server_is_not_a_cluster(redis_url: str) -> None:
    store = RedisStore(redis_url.replace("redis://", "redis+cluster://").rpartition("/")[0])
    await store.open()
    try:
        with pytest.raises(UnsuitableServer, match="not a cluster"):
            await store.check()
    finally:
        await store.close()


# ----------------------------------------------------------------------------------------- replicas


async def test_a_publish_that_no_replica_confirms_is_uncertain_and_not_a_success(redis_url: str) -> None:
    async with open_store(f"{redis_url}?wait_replicas=1&wait_timeout=0.05") as store:
        for verb in (
            lambda: store.publish(message()),
            lambda: store.publish(message(timer_id="t")),
            lambda: store.publish_batch([message()]),
        ):
            with pytest.raises(PublishUncertain, match="only 0 of 1 replicas"):
                await verb()
        assert len(await store.peek()) == 3


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "earliest"])
async def test_a_publish_is_uncertain_again_until_a_replica_has_what_an_earlier_try_stored(
    redis_url: str, replica: Redis, on_conflict: OnConflict
) -> None:
    timer = message(timer_id="t", due=timedelta(hours=1), on_conflict=on_conflict)
    async with (
        client(redis_url) as own,
        open_store(redis_url, wait_replicas=1, wait_timeout=timedelta(seconds=5)) as patient,
        open_store(redis_url, wait_replicas=1, wait_timeout=timedelta(milliseconds=50)) as one,
        open_store(redis_url, wait_replicas=1, wait_timeout=timedelta(milliseconds=50)) as other,
    ):
        await until(lambda: _in_step(own))
        for store in (patient, one, other):
            await until(partial(_is_confirmed, store))
        replica.pause()
        # In Redis 8 WAIT covers what its own connection has written, and the second and third try store nothing.
        for store in (one, one, other):
            with pytest.raises(PublishUncertain, match="0 of 1"):
                await store.publish(timer)
        replica.resume()
        with pytest.raises(TimerExists) if on_conflict == "raise" else nullcontext():
            assert await patient.publish(timer) is None
        assert [each.timer_id for each in await one.peek()].count("t") == 1


async def test_a_publish_that_a_replica_confirms_is_a_success(redis_url: str, replica: Redis) -> None:
    async with (
        open_store(redis_url, wait_replicas=1, wait_timeout=timedelta(seconds=5)) as store,
        client(redis_url) as own,
    ):
        await until(lambda: _in_step(own))
        assert await store.publish(message()) is not None
        await asyncio.to_thread(replica.kill)

    async with open_store(redis_url, wait_replicas=1, wait_timeout=timedelta(milliseconds=50)) as store:
        with pytest.raises(PublishUncertain, match="0 of 1"):
            await store.publish(message())


@pytest.mark.parametrize(
    "query", ["wait_replicas=many", "wait_replicas=-1", "wait_timeout=0", "wait_timeout=x"]
)
def test_a_wrong_number_in_the_url_is_refused_without_quoting_it(query: str) -> None:
    with pytest.raises(ValueError, match="wait_replicas") as refused:
        RedisStore(f"redis://user:hush@host/0?{query}")
    assert "hush" not in str(refused.value)
