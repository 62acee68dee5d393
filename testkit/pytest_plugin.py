"""The servers as fixtures. Load with `pytest_plugins = ["testkit.pytest_plugin"]`.

An unavailable server skips the test on a laptop and fails it on CI, where a skip would go
unnoticed. The same holds for a test that needs to kill a server that is not ours.

Several processes may share a run (`pytest -n 2`). Each has servers of its own, so the files that need the same one go
to the same process; and only one process at a time makes a server.
"""

import fcntl
import gc
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # It brings no types.

from testkit.servers import NotOurs, Postgres, ServerUnavailable, cleanup
from testkit.servers.lifecycle import StartsAndCloses

AnyServer = TypeVar("AnyServer", bound=StartsAndCloses)

TOGETHER: Final = {
    "clusters": (
        "tests/kit/test_clusters.py",
        "tests/stores/mysql/test_galera*",
        "tests/stores/redis/test_cluster*",
    ),
    "postgres": ("tests/*/test_postgres*", "tests/stores/postgres/*"),
    "mysql": ("tests/*/test_mysql*", "tests/stores/mysql/*"),
    "redis": ("tests/*/test_redis*", "tests/stores/redis/*", "tests/examples/test_reminders.py"),
    "simulation": ("tests/simulation/test_simulation.py",),
    "brokers": ("tests/relay/test_rabbitmq.py", "tests/relay/test_nats.py"),
}
"""The files that go to one process; the first matching pattern counts. The slowest come first, and files not named
here last, one by one: so all processes finish at about the same time."""

_TESTS_OF_THE_KIT: Final = "tests/kit/"
_ROOM_FOR_TEMPORARY_FILES: Final = 4 << 30


class Turns:
    """A fair lock for creating servers, among the processes of one run.

    A port looks free to the others until the server listens on it. And creating a server sweeps away what dead
    runs left, which would disturb a test that kills a run to see what it leaves.
    """

    def __init__(self) -> None:
        self._meeting_place: Path | None = None
        self._mine = False

    def share(self, directory: Path) -> None:
        """There are other processes, and they share this directory."""
        self._meeting_place = directory

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Wait for the lock, and hold it until the block is left."""
        if self._meeting_place is None or self._mine:
            yield
            return
        with (self._meeting_place / "turn.lock").open("w") as turn:
            # The queue makes it fair: a plain lock may go again and again to the process that just released it.
            with (self._meeting_place / "queue.lock").open("w") as queue:
                fcntl.flock(queue, fcntl.LOCK_EX)
                fcntl.flock(turn, fcntl.LOCK_EX)
            self._mine = True
            try:
                yield
            finally:
                self._mine = False


turns: Final = Turns()


def on_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


@contextmanager
def provide(server: AnyServer) -> Iterator[AnyServer]:
    """The server or cluster, started, for as long as the block lasts; skips the test if it is unavailable here."""
    with _skip_on(ServerUnavailable), turns.mine():
        server.start()
    with server:
        yield server


@contextmanager
def _skip_on(obstacle: type[Exception]) -> Iterator[None]:
    try:
        yield
    except obstacle as error:
        if on_ci():
            raise
        pytest.skip(str(error))


def pytest_configure(config: pytest.Config) -> None:
    if cleanup.has_room(cleanup.MEMORY, _ROOM_FOR_TEMPORARY_FILES):
        # In memory, like the servers' files: on a disk the SQLite tests mostly wait for it.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(cleanup.MEMORY))
    # Else each of thousands of connections makes a context for TLS first, which our servers do not offer.
    os.environ.setdefault("PGSSLMODE", "disable")
    # Drivers make one all the same: without the machine's certificates, which no test needs, in 1 ms instead of 50,
    # whatever the machine's own settings say.
    os.environ["SSL_CERT_FILE"] = os.devnull
    if _is_one_of_several(config):
        # Each has its own directory for temporary files, and all of these lie in one.
        turns.share(Path(config.option.basetemp).parent)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector.

    That would walk again and again over the million objects that collecting leaves, for a third of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "ByServer | None":
    if config.option.dist != "load":
        return None  # The user asked for another distribution.
    config.option.loadscopereorder = False  # The number of tests says little about how long they take.
    return ByServer(config, log)


class ByServer(LoadScopeScheduling):  # type: ignore[misc]  # It brings no types.
    """Hands out files, those in `TOGETHER` together.

    Not `--dist loadgroup`, which puts the group into the names of the tests: pasted from a report, they would not be
    found.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def _unit(nodeid: str) -> str:
    """What a test is handed out with."""
    file = nodeid.partition("::")[0]
    fitting = (unit for unit, files in TOGETHER.items() if any(fnmatch(file, each) for each in files))
    return next(fitting, file)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_one_of_several(config):
        place = {unit: number for number, unit in enumerate(TOGETHER)}
        items.sort(key=lambda item: place.get(_unit(item.nodeid), len(place)))


def _is_one_of_several(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


# First, so that the time a test may take does not run while it waits for its turn.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    turn = turns.mine() if item.nodeid.startswith(_TESTS_OF_THE_KIT) else nullcontext()
    with turn:
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    with _skip_on(NotOurs):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with _skip_on(NotOurs):
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One Postgres for the whole session. A test may kill it: the next one finds it running again."""
    with provide(Postgres.from_environment()) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """The URL of an empty database that only this test knows."""
    postgres_server.revive()
    url = postgres_server.create_database()
    yield url
    postgres_server.revive()
    postgres_server.drop_database(url)
