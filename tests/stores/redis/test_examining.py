"""What can be wrong with a Redis server: each finding is provoked, found, and gone after its remedy."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from faults.clock import Clock
from nightmail.findings import Code, Finding, Severity
from nightmail.operations.doctor import diagnose
from nightmail.stores.redis import RedisStore, schema
from nightmail.testing.conformance.workers import a_report
from testkit.pytest_plugin import provide
from testkit.servers.redis import Redis
from tests.stores.redis.support import account, client, open_store
from tests.stores.shared.examining import findings
from tests.stores.support import until

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def own_server() -> Iterator[Redis]:
    """A server whose settings a test may change."""
    with provide(Redis()) as server:
        yield server


@pytest_asyncio.fixture
async def store(own_server: Redis) -> AsyncIterator[RedisStore]:
    async with open_store(own_server.url) as store:
        yield store


async def test_a_server_in_order_has_no_findings(store: RedisStore) -> None:
    assert await store.examine() == []


async def test_a_server_that_may_drop_messages_is_fatal_until_it_may_not(
    own_server: Redis, store: RedisStore
) -> None:
    async with client(own_server.url) as own:
        await own.config_set("maxmemory-policy", "allkeys-lru")
        (found,) = await findings(store, Code.REDIS_EVICTION)
        told = [each.code for each in await diagnose(store) if each.lasting]
        await own.config_set("maxmemory-policy", "noeviction")

    assert (found.severity, found.lasting) == (Severity.FATAL, True)
    assert found.evidence == "maxmemory-policy is allkeys-lru"
    # Not a second time, as a server that a service would refuse.
    assert told == [Code.REDIS_EVICTION]
    assert await findings(store, Code.REDIS_EVICTION) == []


@pytest.mark.parametrize(
    ("settings", "severity", "evidence"),
    [
        ({"appendonly": "no", "save": ""}, Severity.FATAL, "appendonly is no, and save is empty"),
        ({"appendonly": "no", "save": "60 1"}, Severity.WARNING, 'appendonly is no, and save is "60 1"'),
        ({"appendfsync": "no"}, Severity.WARNING, "appendfsync is no"),
    ],
)
async def test_a_server_that_does_not_keep_messages_is_found(
    own_server: Redis, store: RedisStore, settings: dict[str, str], severity: Severity, evidence: str
) -> None:
    async with client(own_server.url) as own:
        for name, value in settings.items():
            await own.config_set(name, value)
        (found,) = await findings(store, Code.REDIS_PERSISTENCE)
        for name, value in {"appendonly": "yes", "appendfsync": "everysec", "save": ""}.items():
            await own.config_set(name, value)

    assert (found.severity, found.evidence) == (severity, evidence)
    assert await findings(store, Code.REDIS_PERSISTENCE) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
async def test_a_server_whose_disk_is_full_is_found_until_there_is_room() -> None:
    # Not pytest's directory: the server has a user of its own, who must get to it.
    with TemporaryDirectory() as directory:
        disk = Path(directory)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "tmpfs", disk], check=True)
        try:
            server = Redis()
            server.root = disk
            with provide(server):
                async with open_store(server.url) as store, client(server.url) as own:
                    await own.set("ballast", b"x" * 5_000_000)
                    await until(lambda: _is_found(store, Code.REDIS_PERSISTENCE))
                    (found,) = await findings(store, Code.REDIS_PERSISTENCE)
                    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)

                    async def is_gone() -> bool:
                        return not await findings(store, Code.REDIS_PERSISTENCE)

                    await until(is_gone)
        finally:
            subprocess.run(["umount", disk], check=True)

    assert (found.severity, found.lasting) == (Severity.FATAL, True)
    assert found.evidence == "aof_last_write_status is not ok"


async def _is_found(store: RedisStore, code: Code) -> bool:
    return bool(await findings(store, code))


async def test_replicas_that_publishes_do_not_wait_for_are_found(
    own_server: Redis, store: RedisStore
) -> None:
    with provide(Redis(options={"replicaof": ["127.0.0.1", own_server.port]})):

        async def is_found() -> bool:
            return bool(await findings(store, Code.REDIS_REPLICAS))

        await until(is_found)
        (found,) = await findings(store, Code.REDIS_REPLICAS)
        async with client(own_server.url) as own:
            await own.config_set("min-replicas-to-write", 1)
            guarded = await findings(store, Code.REDIS_REPLICAS)
            await own.config_set("min-replicas-to-write", 0)
        async with open_store(own_server.url, wait_replicas=1) as patient:
            waits = await findings(patient, Code.REDIS_REPLICAS)

    assert found.severity is Severity.NOTICE
    assert found.evidence.startswith("1 replica; min-replicas-to-write is 0")
    assert (guarded, waits) == ([], [])


@pytest.mark.parametrize(("share", "severity"), [(0.9, Severity.WARNING), (1.0, Severity.FATAL)])
async def test_a_memory_that_is_nearly_full_is_found_until_there_is_more(
    own_server: Redis, store: RedisStore, share: float, severity: Severity
) -> None:
    async with client(own_server.url) as own:
        used = (await own.info("memory"))["used_memory"]
        await own.config_set("maxmemory", int(used / share))
        (found,) = await findings(store, Code.REDIS_MEMORY)
        await own.config_set("maxmemory", 10 * used)

        assert (found.severity, "% of maxmemory is used" in found.evidence) == (severity, True)
        assert await findings(store, Code.REDIS_MEMORY) == []
        await own.config_set("maxmemory", 0)


async def test_workers_that_may_need_more_connections_than_there_are_are_found_until_there_are_fewer(
    own_server: Redis, store: RedisStore
) -> None:
    for number in range(5):
        await store.report(a_report(f"{number:016x}", pid=number))
    async with client(own_server.url) as own:
        most = (await own.config_get("maxclients"))["maxclients"]
        await own.config_set("maxclients", 24)
        (found,) = await told(store, Code.REDIS_CONNECTIONS)
        await store.sign_off(f"{4:016x}")
        fewer = await told(store, Code.REDIS_CONNECTIONS)
        await own.config_set("maxclients", most)
    for number in range(4):
        await store.sign_off(f"{number:016x}")

    assert found.what == "the workers may need more connections than this server has"
    assert found.evidence.startswith("5 processes with up to 5 each need up to 25; there are 24, of which ")
    assert fewer == []


async def test_a_server_that_runs_out_of_connections_is_found_until_there_may_be_more(
    own_server: Redis, store: RedisStore
) -> None:
    async with AsyncExitStack() as connections:
        for _ in range(20):
            own = await connections.enter_async_context(client(own_server.url))
            used = (await own.info("clients"))["connected_clients"]
        most = (await own.config_get("maxclients"))["maxclients"]
        await own.config_set("maxclients", used)
        (found,) = await findings(store, Code.REDIS_CONNECTIONS)
        await own.config_set("maxclients", most)

        assert (found.severity, found.lasting) == (Severity.WARNING, False)
        assert re.fullmatch(rf"\d+ of {used} are in use", found.evidence)
        assert await findings(store, Code.REDIS_CONNECTIONS) == []


async def test_an_account_that_may_not_read_the_settings_is_examined_all_the_same(own_server: Redis) -> None:
    async with (
        account(own_server.url, "operator", also=["-config", "-info"]) as url,
        open_store(own_server.url),
    ):
        store = RedisStore(url)
        await store.open()
        assert await store.examine() == []
        await store.close()


async def test_a_server_whose_clock_is_off_is_found_until_it_is_right() -> None:
    # Not pytest's directory: the server has a user of its own, who must get to it.
    with TemporaryDirectory() as directory:
        clock = Clock(Path(directory), "server", seconds=-90)
        with provide(Redis(environment=clock.environment)) as server:
            async with open_store(server.url) as store:
                (found,) = await told(store, Code.CLOCK_SKEW)
                clock.set(0)

                assert re.match(r"this machine's clock is 1 min (30|29) s ahead of the store's", found.what)
                assert await told(store, Code.CLOCK_SKEW) == []


async def test_a_replica_is_not_fit_to_keep_messages_until_it_is_promoted(
    own_server: Redis, store: RedisStore
) -> None:
    with provide(Redis(options={"replicaof": ["127.0.0.1", own_server.port]})) as server:
        replica = RedisStore(server.url)
        await replica.open()
        async with client(server.url) as own:

            async def has_copied() -> bool:
                return bool((await own.info("replication"))["master_link_status"] == "up")

            await until(has_copied)
            # Another reason not to use it does not hide this one.
            await own.config_set("appendonly", "no")
            (found,) = await told(replica, Code.UNSUITABLE_SERVER)
            await own.replicaof("NO", "ONE")

        assert (found.severity, found.lasting) == (Severity.FATAL, True)
        assert "this Redis is a replica" in found.evidence
        assert await told(replica, Code.UNSUITABLE_SERVER) == []
        await replica.close()


async def test_a_server_that_is_no_cluster_is_found_until_the_url_says_so(
    own_server: Redis, store: RedisStore
) -> None:
    as_cluster = RedisStore(own_server.url.replace("redis://", "redis+cluster://"))
    await as_cluster.open()
    (found,) = await told(as_cluster, Code.UNSUITABLE_SERVER)
    await as_cluster.close()

    assert found.evidence == "this Redis is not a cluster: use redis:// instead of redis+cluster://"
    assert await told(store, Code.UNSUITABLE_SERVER) == []


async def test_keys_that_were_changed_are_found_until_they_are_changed_back(
    own_server: Redis, store: RedisStore
) -> None:
    async with client(own_server.url) as own:
        (meta,) = await own.keys("*meta*")
        interval = await own.hget(meta, "look_interval")
        await own.hset(meta, "look_interval", 60)
        (found,) = await told(store, Code.SCHEMA_DRIFT)
        await own.hset(meta, "look_interval", interval)

    assert "look_interval is 60 and not 5" in found.evidence
    assert await told(store, Code.SCHEMA_DRIFT) == []


async def test_keys_of_an_older_version_are_found_until_they_are_of_this_one(
    own_server: Redis, store: RedisStore
) -> None:
    async with client(own_server.url) as own:
        (meta,) = await own.keys("*meta*")
        await own.hset(meta, "version", 0)
        (found,) = await told(store, Code.SCHEMA_OUTDATED)
        await own.hset(meta, "version", 1)

    assert (found.severity, found.lasting) == (Severity.FATAL, True)
    assert await told(store, Code.SCHEMA_OUTDATED) == []


async def test_keys_that_are_newer_than_the_code_are_found_until_it_is_updated(
    own_server: Redis, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(own_server.url) as own:
        (meta,) = await own.keys("*meta*")
        await own.hset(meta, "version", 2)
        (found,) = await told(store, Code.SCHEMA_NEWER)
        monkeypatch.setattr(schema, "VERSION", 2)
        updated = await told(store, Code.SCHEMA_NEWER)
        await own.hset(meta, "version", 1)

    assert (found.severity, found.lasting, updated) == (Severity.NOTICE, False, [])


async def test_an_account_that_only_looks_is_told_so_until_it_may_work(
    own_server: Redis, store: RedisStore
) -> None:
    async with account(own_server.url, "operator", also=["-zadd", "-hset"]) as url:
        operator = RedisStore(url)
        await operator.open()
        (found,) = await told(operator, Code.RIGHTS_MISSING)
        async with client(own_server.url) as own:
            name = urlsplit(url).username
            await own.execute_command("ACL", "SETUSER", name, "+zadd", "+hset")

        assert found.severity is Severity.NOTICE
        assert await told(operator, Code.RIGHTS_MISSING) == []
        await operator.close()


async def told(store: RedisStore, code: Code) -> list[Finding]:
    """What a doctor finds of this kind."""
    return [each for each in await diagnose(store) if each.code is code]
