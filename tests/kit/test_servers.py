"""The test servers keep their word: they come up, come back, and leave nothing behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import asyncpg
import pytest

from testkit.processes import Process, descendants
from testkit.pytest_plugin import provide
from testkit.servers import (
    NotOurs,
    Package,
    Postgres,
    Server,
    ServerFailed,
    ServerUnavailable,
    cleanup,
    install,
)
from testkit.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
SECONDS = 30.0
VARIABLE = "NIGHTMAIL_TEST_POSTGRES_URL"


@pytest.fixture(scope="module")
def shared() -> Iterator[Postgres]:
    with provide(Postgres(durable=True)) as server:
        yield server


@pytest.fixture
def server(shared: Postgres) -> Postgres:
    """A private server, whatever the environment says: these tests are rough with it."""
    shared.revive()
    return shared


@pytest.fixture
def table(server: Postgres) -> str:
    query(server.url, "create table if not exists committed (n int)")
    query(server.url, "truncate committed")
    return "committed"


# Starting, stopping, killing


def test_a_started_server_answers(server: Postgres) -> None:
    assert server.running
    assert query(server.url, "select 1") == 1


def test_a_started_server_answers_on_its_socket_too(server: Postgres) -> None:
    url = f"postgresql://postgres@/postgres?host={server.sockets}&port={server.port}"

    assert query(url, "select 1") == 1


def test_what_was_committed_survives_kill_9(server: Postgres, table: str) -> None:
    query(server.url, f"insert into {table} values (42)")

    server.kill()
    server.start()

    assert query(server.url, f"select n from {table}") == 42


def test_kill_9_ends_the_processes_of_connected_clients_as_well(server: Postgres) -> None:
    with idle_client(server.url):
        processes = server.processes
        assert any(title(process).endswith(" idle") for process in processes)

        server.kill()

    assert not server.running
    assert alive(processes) == []


def test_a_stopped_server_comes_back_on_the_same_port_with_its_data(server: Postgres, table: str) -> None:
    query(server.url, f"insert into {table} values (7)")
    url = server.url

    server.stop()

    assert not server.running
    with pytest.raises(ConnectionRefusedError):
        query(url, "select 1")

    server.start()

    assert server.url == url
    assert query(url, f"select n from {table}") == 7


def test_stopping_does_not_wait_for_clients(server: Postgres) -> None:
    with idle_client(server.url):
        server.stop(within=SECONDS)

    assert not server.running


def test_a_restart_is_another_process(server: Postgres) -> None:
    before = query(server.url, "select pg_postmaster_start_time()")

    server.restart()

    assert query(server.url, "select pg_postmaster_start_time()") > before


def test_a_paused_server_keeps_silent_until_it_is_resumed(server: Postgres) -> None:
    server.pause()

    assert all(process.stopped for process in server.processes)
    with pytest.raises(TimeoutError):
        query(server.url, "select 1", timeout=0.2)

    server.resume()

    assert query(server.url, "select 1") == 1


def test_a_paused_server_can_be_killed(server: Postgres) -> None:
    # Its frozen children do not notice that the main process is gone.
    with idle_client(server.url):
        server.pause()
        processes = server.processes

        server.kill()

    assert alive(processes) == []


def test_a_paused_server_can_be_stopped(server: Postgres) -> None:
    server.pause()

    server.stop()

    assert not server.running


@pytest.mark.parametrize("harm", [Postgres.kill, Postgres.stop, Postgres.pause, Postgres.resume])
def test_a_server_is_revived_whatever_a_test_did_to_it(server: Postgres, harm: Any) -> None:
    harm(server)

    server.revive()

    assert query(server.url, "select 1") == 1


def test_reviving_an_untouched_server_costs_it_nothing(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Postgres, "probe")
    monkeypatch.delattr("testkit.servers.supervised.descendants")

    server.revive()

    assert query(server.url, "select 1") == 1


def test_a_server_outlives_the_thread_that_started_it(server: Postgres) -> None:
    server.stop()
    starter = threading.Thread(target=server.start)

    starter.start()
    starter.join()

    main = server.processes[0]
    assert query(server.url, "select 1") == 1
    assert main.alive


def test_durable_means_fsync(server: Postgres) -> None:
    assert query(server.url, "show fsync") == "on"
    assert query(server.url, "show synchronous_commit") == "on"
    assert query(server.url, "show full_page_writes") == "on"


def test_settings_reach_the_server_and_what_is_not_durable_still_survives_kill_9() -> None:
    with provide(Postgres(settings={"max_connections": 77, "application_name": "it's me"})) as server:
        assert query(server.url, "show max_connections") == "77"
        assert query(server.url, "show fsync") == "off"
        query(server.url, "create table t as select 5 as n")

        server.kill()
        server.start()

        assert query(server.url, "select n from t") == 5


def test_a_server_that_cannot_start_shows_its_log_and_leaves_nothing() -> None:
    broken = Postgres(settings={"no_such_setting": "on"})

    with pytest.raises(ServerFailed, match=r'log:(.|\n)*unrecognized .* "no_such_setting"'), provide(broken):
        raise AssertionError("never reached")

    with pytest.raises(ServerFailed, match="not been started"):
        _ = broken.directory


# Leaving nothing behind


def test_close_removes_processes_and_directory() -> None:
    with provide(Postgres()) as server:
        directory = server.directory
        processes = server.processes
        assert (directory / "data").is_dir()
        assert len(processes) > 1

    assert not directory.exists()
    assert alive(processes) == []


def test_close_after_kill_9_gives_back_the_shared_memory() -> None:
    with provide(Postgres()) as server:
        segment = shared_memory_of(server.directory)
        assert segment in shared_memory()
        server.kill()

    assert segment not in shared_memory()


def test_a_closed_server_can_be_started_again() -> None:
    with provide(Postgres()) as server:
        first = server.directory
        server.close()

        server.start()

        assert server.directory != first
        assert query(server.url, "select 1") == 1


@pytest.mark.parametrize("before", ["pass", "server.pause()"], ids=["running", "paused"])
def test_a_run_killed_with_kill_9_leaves_no_server_and_the_next_run_sweeps_its_directory(
    server: Postgres, before: str
) -> None:
    with another_run(before) as run:
        assert len(run.processes) > 2
        segment = shared_memory_of(run.directory)

        run.popen.kill()

    wait_until(lambda: alive(run.processes) == [], within=SECONDS, what="the orphaned server to end")
    assert segment not in shared_memory()
    assert run.directory.exists()

    with Postgres():
        assert not run.directory.exists()


def test_a_server_ends_with_its_supervisor(server: Postgres) -> None:
    with another_run("pass") as run:
        supervisor, *processes = run.processes

        supervisor.signal(signal.SIGKILL)

        wait_until(lambda: alive(processes) == [], within=SECONDS, what="the server to end")


def test_a_run_that_ends_without_closing_leaves_nothing(server: Postgres) -> None:
    with another_run("sys.exit(3)") as run:
        assert run.popen.wait(SECONDS) == 3

    assert not run.directory.exists()
    assert alive(run.processes) == []


def test_a_forked_child_does_not_close_its_parents_server(server: Postgres) -> None:
    forked = """
        child = os.fork()
        if child == 0:
            sys.exit(0)  # Runs the child's copy of what the parent registered for its own exit.
        os.waitpid(child, 0)
        server.sql("select 1")
        sys.exit(0 if server.running else 1)
    """
    with another_run(forked) as run:
        assert run.popen.wait(SECONDS) == 0


def test_the_sweep_ends_what_a_dead_run_left_running(tmp_path: Path) -> None:
    with sleeper() as process:
        directory = abandoned(tmp_path, processes=[process])

        cleanup.sweep(tmp_path)

        assert not process.alive
        assert not directory.exists()


def test_the_sweep_spares_a_process_that_only_got_an_old_pid(tmp_path: Path) -> None:
    with sleeper() as process:
        directory = abandoned(tmp_path, processes=[Process(process.pid, "another boot/1")])

        cleanup.sweep(tmp_path)

        assert process.alive
        assert not directory.exists()


def test_the_sweep_spares_the_directories_of_living_runs_and_those_that_are_not_ours(tmp_path: Path) -> None:
    living = abandoned(tmp_path, owner=Process.of(os.getpid()))
    unmarked = tmp_path / "nightmail-testkit-unmarked"
    unmarked.mkdir()
    linked = tmp_path / "nightmail-testkit-linked"
    linked.symlink_to(abandoned(tmp_path / "elsewhere"))

    cleanup.sweep(tmp_path)

    assert living.is_dir()
    assert unmarked.is_dir()
    assert linked.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory another user's")
def test_the_sweep_takes_no_orders_from_another_user(tmp_path: Path) -> None:
    with sleeper() as process:
        directory = abandoned(tmp_path, processes=[process])
        os.chown(directory, 65534, 65534)

        cleanup.sweep(tmp_path)

        assert process.alive
        assert directory.is_dir()


# Databases


def test_fresh_databases_are_isolated(server: Postgres) -> None:
    with server.fresh_database() as one, server.fresh_database() as other:
        query(one, "create table t (n int)")

        assert query(one, "select to_regclass('t')::text") == "t"
        assert query(other, "select to_regclass('t')::text") is None


def test_a_database_is_dropped_though_a_client_is_connected(server: Postgres) -> None:
    url = server.create_database()

    with idle_client(url):
        server.drop_database(url)

    with pytest.raises(asyncpg.InvalidCatalogNameError):
        query(url, "select 1")


def test_a_database_that_no_test_made_is_never_dropped(server: Postgres) -> None:
    with pytest.raises(ServerFailed, match="not made by a test"):
        server.drop_database(server.url)


@pytest.mark.asyncio
async def test_the_kit_may_be_used_inside_an_event_loop(server: Postgres) -> None:
    with server.fresh_database() as url:
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("select 1") == 1
        await connection.close()


# Whose server it is


def test_the_environment_names_a_server_to_use(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, server.url)

    with Postgres.from_environment() as theirs:
        assert not theirs.ours
        assert theirs.url == server.url
        with theirs.fresh_database() as url:
            assert query(url, "select 1") == 1

    assert server.running


@pytest.mark.parametrize(
    "deed", [Postgres.stop, Postgres.kill, Postgres.restart, Postgres.pause, Postgres.resume]
)
def test_a_server_of_the_users_is_not_touched(server: Postgres, deed: Any) -> None:
    theirs = Postgres(server.url)

    with pytest.raises(NotOurs, match=VARIABLE):
        deed(theirs)

    assert server.running


def test_a_server_of_the_users_that_does_not_answer_is_a_failure() -> None:
    missing = Postgres("postgresql://postgres@127.0.0.1:9/postgres")

    with pytest.raises(ServerFailed, match="not ready"):
        missing.start(within=0.1)


def test_without_the_variable_the_server_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    assert Postgres.from_environment().ours


# Servers that cannot be had


class Missing(Server):
    name = "missing"
    package = Package("no-such-package")
    programs = ("no-such-program",)
    user = "root"

    def prepare(self) -> None:
        raise AssertionError("never reached")

    def command(self) -> list[str]:
        raise AssertionError("never reached")

    def probe(self) -> None:
        raise AssertionError("never reached")

    def private_url(self) -> str:
        raise AssertionError("never reached")


def test_a_missing_server_skips_the_test_on_a_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(install.INSTALL_VARIABLE, "0")
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception) as skipped, provide(Missing()):
        raise AssertionError("never reached")

    assert "no-such-program was not found" in str(skipped.value)
    assert "install Debian package no-such-package, or set NIGHTMAIL_TEST_MISSING_URL" in str(skipped.value)


def test_a_missing_server_fails_the_test_on_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(install.INSTALL_VARIABLE, "0")
    monkeypatch.setenv("CI", "true")

    # The skip is caught as well: passed on, it would skip this test instead of failing it.
    with pytest.raises((ServerUnavailable, pytest.skip.Exception)) as raised, provide(Missing()):
        raise AssertionError("never reached")

    assert raised.type is ServerUnavailable


def test_of_several_versions_the_newest_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in "9", "17", "15":
        program = tmp_path / version / "bin" / "some-server"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
    package = Package("some-server", places=(f"{tmp_path}/*/bin",))

    assert install.find("some-server", package) == tmp_path / "17/bin/some-server"

    monkeypatch.setenv("PATH", f"{tmp_path}/15/bin")

    assert install.find("some-server", package) == tmp_path / "15/bin/some-server"


# The fixtures

ROUGH_TESTS = """
    def test_use(postgres_url):
        assert "/nightmail_test_" in postgres_url

    def test_kill(postgres_server):
        postgres_server.kill()

    def test_use_after_kill(postgres_server, postgres_url):
        assert postgres_server.running
"""


@pytest.mark.parametrize(
    ("environment", "summary"),
    [
        ({}, "3 passed"),
        ({VARIABLE: "the user's"}, "2 passed, 1 skipped"),
        ({VARIABLE: "the user's", "CI": "true"}, "1 failed, 2 passed"),
    ],
    ids=["private", "external", "external-on-ci"],
)
def test_the_fixtures(server: Postgres, tmp_path: Path, environment: dict[str, str], summary: str) -> None:
    (tmp_path / "test_rough.py").write_text(dedent(ROUGH_TESTS))
    ours = {key: value for key, value in os.environ.items() if key not in ("CI", VARIABLE)}
    if VARIABLE in environment:
        environment = {**environment, VARIABLE: server.url}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "testkit.pytest_plugin", str(tmp_path)],
        cwd=REPOSITORY,
        env={**ours, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS * 2,
    )

    assert summary in done.stdout.splitlines()[-1], done.stdout
    assert query(server.url, "select count(*) from pg_database where datname like 'nightmail_test_%'") == 0


# Tools


def query(url: str, statement: str, *, timeout: float = SECONDS) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(url, timeout=timeout)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(run())


def alive(processes: list[Process]) -> list[Process]:
    return [process for process in processes if process.alive]


def title(process: Process) -> str:
    """What the process calls itself; nothing when it has ended, as a server's short-lived workers do at any time."""
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_text().rstrip("\0 ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def shared_memory() -> set[str]:
    """The ids of all segments of System V shared memory."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines}


def shared_memory_of(directory: Path) -> str:
    """The id of the segment that the server running here has made for itself."""
    return (directory / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1]


@contextmanager
def idle_client(url: str) -> Iterator[None]:
    """A client that stays connected."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(url))
    try:
        yield
    finally:
        connection.terminate()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@contextmanager
def sleeper() -> Iterator[Process]:
    """A process that does nothing, for as long as the block lasts."""
    with subprocess.Popen(["sleep", "infinity"]) as popen:
        try:
            yield Process.of(popen.pid)
        finally:
            popen.kill()


def abandoned(root: Path, *, owner: Process | None = None, processes: list[Process] | None = None) -> Path:
    """A directory as a killed run leaves it; `owner` is that run, by default one that cannot be alive."""
    directory = root / "nightmail-testkit-abandoned"
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "file").touch()
    owner = owner or Process(os.getpid(), "another boot/1")
    (directory / "owner.json").write_text(json.dumps([asdict(owner)]))
    cleanup.record(directory, processes or [])
    return directory


@dataclass(frozen=True)
class Run:
    popen: subprocess.Popen[str]
    directory: Path
    processes: list[Process]
    """The supervisor, then those of the server."""


@contextmanager
def another_run(body: str) -> Iterator[Run]:
    """Another process with a server of its own that has done what `body` says; killed at the end."""
    script = """
        import os, sys
        from testkit.servers import Postgres

        server = Postgres().start()
        print(server.directory, flush=True)
        sys.stdin.readline()
        {body}
        print("done", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", dedent(script).replace("{body}", dedent(body))],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        assert popen.stdin is not None
        assert popen.stdout is not None
        try:
            directory = Path(popen.stdout.readline().strip())
            supervisor, *_ = descendants(popen.pid)
            processes = [supervisor, *descendants(supervisor.pid)]
            print("go", file=popen.stdin, flush=True)
            popen.stdout.readline()
            yield Run(popen, directory, processes)
        finally:
            popen.kill()
