"""The test clusters keep their word: they lose a node, find it again, and leave nothing behind."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from testkit.processes import Process, descendants
from testkit.pytest_plugin import provide
from testkit.servers import NotOurs, ServerFailed, ServerUnavailable, install
from testkit.servers.galera import Galera, GaleraNode
from testkit.servers.redis_cluster import SLOTS, RedisCluster, RedisNode
from testkit.waiting import wait_until

pytest_plugins = ["testkit.cluster_fixtures"]
# With the contract on clusters: a kit that is broken is noticed by the tests of those stores, too.
pytestmark = pytest.mark.compat

REPOSITORY = Path(__file__).parents[2]
SECONDS = 30.0


# Galera


@pytest.fixture
def mariadbs(galera: Galera) -> Galera:
    galera.revive()
    return galera


@pytest.fixture
def table(mariadbs: Galera) -> Iterator[str]:
    """An empty table that all nodes know."""
    with mariadbs.fresh_database() as urls:
        table = f"`{urlsplit(urls[0]).path.removeprefix('/')}`.numbers"
        mariadbs.nodes[0].sql(f"create table {table} (n int primary key)")
        for node in mariadbs.nodes:
            assert numbers(node, table) == []
        yield table
        mariadbs.revive()


def numbers(node: GaleraNode, table: str) -> list[int]:
    """What this node reads once it has done all that was committed anywhere before."""
    return [n for (n,) in node.sql(f"set statement wsrep_sync_wait = 1 for select n from {table} order by n")]


@pytest.mark.mysql
def test_three_nodes_know_of_one_another(mariadbs: Galera) -> None:
    states = [node.state() for node in mariadbs.nodes]

    assert [state["wsrep_cluster_size"] for state in states] == ["3", "3", "3"]
    assert [state["wsrep_ready"] for state in states] == ["ON", "ON", "ON"]
    assert len({state["wsrep_cluster_state_uuid"] for state in states}) == 1


@pytest.mark.mysql
def test_a_database_has_a_url_on_each_node_and_what_is_written_on_one_is_read_on_all(
    mariadbs: Galera,
) -> None:
    with mariadbs.fresh_database() as urls:
        assert [urlsplit(url).port for url in urls] == [node.port for node in mariadbs.nodes]
        [name] = {urlsplit(url).path.removeprefix("/") for url in urls}
        mariadbs.nodes[1].sql(f"create table `{name}`.t (n int primary key)")
        mariadbs.nodes[2].sql(f"set statement wsrep_sync_wait = 4 for insert into `{name}`.t values (42)")

        assert [numbers(node, f"`{name}`.t") for node in mariadbs.nodes] == [[42], [42], [42]]

    assert mariadbs.nodes[0].sql(f"show databases like '{name}'") == []


@pytest.mark.mysql
def test_two_nodes_go_on_without_the_third_which_comes_back_and_gets_what_it_missed(
    mariadbs: Galera, table: str
) -> None:
    mariadbs.nodes[2].sql(f"insert into {table} values (1)")

    mariadbs.kill(2)

    assert not mariadbs.nodes[2].running
    mariadbs.nodes[0].sql(f"insert into {table} values (2)")
    mariadbs.nodes[1].sql(f"insert into {table} values (3)")

    mariadbs.restart(2)

    assert numbers(mariadbs.nodes[2], table) == [1, 2, 3]
    assert mariadbs.complete()


@pytest.mark.mysql
@pytest.mark.slow
def test_a_cluster_all_of_whose_nodes_were_killed_comes_back_with_every_commit(
    mariadbs: Galera, table: str
) -> None:
    mariadbs.kill(0)
    mariadbs.nodes[1].sql(f"insert into {table} values (7)")  # The first node does not know of it.
    assert numbers(mariadbs.nodes[2], table) == [7]
    mariadbs.kill(1)
    mariadbs.kill(2)

    mariadbs.start()

    assert [numbers(node, table) for node in mariadbs.nodes] == [[7], [7], [7]]


# Redis Cluster


@pytest.fixture
def redises(redis_cluster: RedisCluster) -> RedisCluster:
    redis_cluster.revive()
    redis_cluster.flush()
    return redis_cluster


@pytest.fixture
def client(redises: RedisCluster) -> Iterator[Any]:
    """One that follows the slots wherever they go."""
    at = urlsplit(redises.url)
    with redis.RedisCluster(host=str(at.hostname), port=int(at.port or 0)) as client:
        yield client


@pytest.mark.redis
def test_three_masters_share_all_slots_and_each_has_a_replica(redises: RedisCluster) -> None:
    masters = redises.masters()

    assert sorted(slot for master in masters for slot in master.myself().slots) == list(range(SLOTS))
    assert len(masters) == 3
    assert len({redises.replica_of(master).port for master in masters}) == 3
    assert redises.url.startswith("redis+cluster://127.0.0.1:")


@pytest.mark.redis
def test_a_failover_makes_the_replica_the_master_and_loses_nothing(
    redises: RedisCluster, client: Any
) -> None:
    client.set("key", "value")
    slot = redises.slot_of("key")
    old = redises.master_of(slot)
    replica = redises.replica_of(old)

    assert redises.failover(slot) is replica
    assert redises.master_of(slot) is replica
    assert redises.replica_of(replica) is old
    assert client.get("key") == b"value"


@pytest.mark.redis
def test_a_replica_takes_over_from_a_killed_master_which_comes_back_as_its_replica(
    redises: RedisCluster, client: Any
) -> None:
    client.set("key", "value")
    slot = redises.slot_of("key")
    old = redises.master_of(slot)
    replica = redises.replica_of(old)
    client.wait(1, 5000, target_nodes=client.get_node_from_key("key"))

    redises.kill(old)

    assert redises.wait_for_heir(slot, of=old) is replica
    assert client.get("key") == b"value"

    redises.restart(old)

    assert redises.replica_of(replica) is old


@pytest.mark.redis
def test_what_a_master_acknowledged_while_its_replica_was_cut_off_is_lost_when_it_is_killed(
    redises: RedisCluster, client: Any
) -> None:
    client.set("key", "old")
    slot = redises.slot_of("key")
    master = redises.master_of(slot)
    replica = redises.replica_of(master)
    client.wait(1, 5000, target_nodes=client.get_node_from_key("key"))

    with redises.cut_off(replica):
        assert client.set("key", "new")
        redises.kill(master)

    assert redises.wait_for_heir(slot, of=master) is replica
    assert client.get("key") == b"old"


@pytest.mark.redis
def test_slots_move_with_their_keys_while_a_client_goes_on_writing(
    redises: RedisCluster, client: Any
) -> None:
    source, target, *_ = redises.masters()
    tags = [tag for tag in map(str, range(60)) if redises.master_of(redises.slot_of(tag)) is source][:5]
    assert len(tags) == 5
    stopped = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not stopped.is_set():
            key = f"{{{tags[len(written) % len(tags)]}}}{len(written)}"
            client.set(key, "value")
            written.append(key)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: len(written) > 500, within=SECONDS, what="keys to be there")
        for tag in tags:
            redises.move_slot(redises.slot_of(tag), target)
        moved = redises.move_slots(source, target, 10)
        enough = len(written) + 100
        wait_until(lambda: len(written) > enough, within=SECONDS, what="the client to go on")
    finally:
        stopped.set()
        writer.join()
    redises.wait_until_settled()

    assert len(moved) == 10
    assert all(redises.master_of(slot) is target for slot in moved)
    assert all(redises.master_of(redises.slot_of(tag)) is target for tag in tags)
    assert [key for key in written if client.get(key) != b"value"] == []


@pytest.mark.redis
def test_a_stopped_cluster_comes_back_with_its_keys(redises: RedisCluster, client: Any) -> None:
    client.set("key", "value")

    redises.stop()
    redises.start()

    assert client.get("key") == b"value"


# Leaving nothing behind


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Galera(size=1), id="galera", marks=pytest.mark.mysql),
        pytest.param(lambda: RedisCluster(masters=3), id="redis", marks=pytest.mark.redis),
    ],
)
def test_close_removes_processes_and_directories(make: Callable[[], Any]) -> None:
    with provide(make()) as cluster:
        processes = [process for node in cluster.nodes for process in node.processes]
        directories = [node.directory for node in cluster.nodes]
        assert len(processes) >= len(cluster.nodes)

    assert alive(processes) == []
    assert [directory for directory in directories if directory.exists()] == []


@pytest.mark.parametrize(
    ("made", "next_run"),
    [
        pytest.param(
            "galera import Galera; cluster = Galera(size=2)",
            lambda: Galera(size=1),
            id="galera",
            marks=pytest.mark.mysql,
        ),
        pytest.param(
            "redis_cluster import RedisCluster; cluster = RedisCluster()",
            RedisCluster,
            id="redis",
            marks=pytest.mark.redis,
        ),
    ],
)
def test_a_run_killed_with_kill_9_leaves_no_node_and_the_next_run_sweeps_its_directories(
    made: str, next_run: Callable[[], Any]
) -> None:
    with another_run(made) as (popen, directories):
        processes = descendants(popen.pid)
        assert len(processes) >= 2 * len(directories)  # A supervisor for each node.
        popen.kill()

    wait_until(lambda: alive(processes) == [], within=SECONDS, what="the orphaned cluster to end")
    assert all(directory.exists() for directory in directories)

    with next_run():
        assert [directory for directory in directories if directory.exists()] == []


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        pytest.param(
            lambda: Galera(settings={"no-such-setting": 1}),
            r"unknown variable 'no-such-setting=1'",
            id="galera",
            marks=pytest.mark.mysql,
        ),
        pytest.param(
            lambda: RedisCluster(options={"no-such-setting": 1}),
            r"no-such-setting",
            id="redis",
            marks=pytest.mark.redis,
        ),
    ],
)
def test_a_cluster_that_cannot_start_shows_a_log_and_leaves_nothing(
    make: Callable[[], Any], complaint: str
) -> None:
    broken = make()

    with pytest.raises(ServerFailed, match=rf"log:(.|\n)*{complaint}"), provide(broken):
        raise AssertionError("never reached")

    for node in broken.nodes:
        with pytest.raises(ServerFailed, match="not been started"):
            _ = node.directory


# Whose cluster it is


def test_the_environment_names_the_nodes_of_a_cluster_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTMAIL_TEST_GALERA_URL", "mysql://a:1/,mysql://b:2/")
    monkeypatch.setenv("NIGHTMAIL_TEST_REDIS_CLUSTER_URL", "redis://c:3")

    galera, redises = Galera.from_environment(), RedisCluster.from_environment()

    assert [node.url for node in galera.nodes] == ["mysql://a:1/", "mysql://b:2/"]
    assert redises.url == "redis+cluster://c:3"
    assert not galera.ours
    assert not redises.ours


def test_without_the_variables_the_clusters_are_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIGHTMAIL_TEST_GALERA_URL", raising=False)
    monkeypatch.delenv("NIGHTMAIL_TEST_REDIS_CLUSTER_URL", raising=False)

    assert Galera.from_environment().ours
    assert RedisCluster.from_environment().ours


def test_the_nodes_of_a_users_cluster_are_not_touched() -> None:
    theirs = Galera(["mysql://127.0.0.1:9/"])
    their_redis = RedisCluster(["redis://127.0.0.1:9"])

    with pytest.raises(NotOurs, match="NIGHTMAIL_TEST_GALERA_URL"):
        theirs.kill(0)
    with pytest.raises(NotOurs, match="NIGHTMAIL_TEST_GALERA_URL"):
        theirs.stop()
    with pytest.raises(NotOurs, match="NIGHTMAIL_TEST_REDIS_CLUSTER_URL"):
        their_redis.kill(their_redis.nodes[0])
    with pytest.raises(NotOurs, match="NIGHTMAIL_TEST_REDIS_CLUSTER_URL"):
        their_redis.flush()


@pytest.mark.parametrize(("node", "make"), [(GaleraNode, Galera), (RedisNode, RedisCluster)])
def test_a_missing_cluster_skips_the_test_on_a_laptop_and_fails_it_on_ci(
    node: Any, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "programs", ("no-such-program",))
    monkeypatch.setenv(install.INSTALL_VARIABLE, "0")
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="no-such-program was not found"), provide(make()):
        raise AssertionError("never reached")

    monkeypatch.setenv("CI", "true")

    # The skip is caught as well: passed on, it would skip this test instead of failing it.
    with pytest.raises((ServerUnavailable, pytest.skip.Exception)) as raised, provide(make()):
        raise AssertionError("never reached")
    assert raised.type is ServerUnavailable


# Tools


def alive(processes: list[Process]) -> list[Process]:
    return [process for process in processes if process.alive]


@contextmanager
def another_run(made: str) -> Iterator[tuple[subprocess.Popen[str], list[Path]]]:
    """Another process with a cluster of its own, and the directories of that; killed at the end."""
    script = f"""
        import sys
        from testkit.servers.{made}

        cluster.start()
        print(*(node.directory for node in cluster.nodes), flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", dedent(script)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        assert popen.stdout is not None
        try:
            yield popen, [Path(word) for word in popen.stdout.readline().split()]
        finally:
            popen.kill()
