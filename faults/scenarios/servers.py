"""Servers that are killed, and what they push that gets lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import asyncmy
import asyncpg
import psycopg
from asyncmy.errors import MySQLError
from redis.asyncio import Redis as Client
from sqlalchemy.exc import DBAPIError

from faults.place import EVERYSEC, UNSYNCED, Place, on_a_small_disk, that_can_lose_power, with_movable_clock
from faults.rules.handling import OLD_SNAPSHOT, WAKEUPS_CUT
from faults.scenarios.network import SERVERS
from faults.scenarios.processes import cast
from faults.scenarios.scenario import ASYNCHRONOUS, Scenario
from faults.stage import Stage
from faults.workload.database import Database, SqlDatabase
from nightmail.stores.postgres.lane import LISTEN
from testkit.servers.base import Server
from testkit.servers.errors import NotReady
from testkit.servers.postgres import Postgres
from testkit.servers.redis import Redis

FULL_SECONDS: Final = 2.0
"""How long a server takes no more connections."""
AGAIN_SECONDS: Final = 0.1
STEP_SECONDS: Final = 8
"""How far the store's clock is moved at once: longer than a lease, and than any message is delayed."""
MOST_TAKEN: Final = 500
"""How many connections are opened at most to reach the limit of the server."""
FEWEST_CONNECTIONS: Final = 10
"""MariaDB takes no lower limit."""
MUCH: Final = "insert into faults_effects select repeat('x', 190) from seq_1_to_5000"
"""A write that needs a larger file, of a transaction that is rolled back."""
NOTICED_SECONDS: Final = 60.0
"""How soon after that a store must have refused a write."""
ANSWERS_SECONDS: Final = 60.0
"""How long a server may take to answer once its disk has room again."""
LISTENING_SECONDS: Final = 10.0
"""How soon a process must listen again."""
KILL_LISTENERS: Final = """
    select count(pg_terminate_backend(pid)) from pg_stat_activity
    where application_name = $1 and datname = current_database()
"""


async def crashes(stage: Stage) -> None:
    """kill -9 of the server under load, and a new start."""
    await cast(stage)
    for number in range(stage.faults):
        await stage.until_busy(stage.random.choice(stage.workers), stage.random.randint(5, 40))
        begun = time.monotonic()
        await stage.place.crash()
        stage.note("server killed", None, begun)
        stage.say(f"{number + 1} of {stage.faults} times killed")


async def wakeups(stage: Stage) -> None:
    """The connections that wait for wake-ups are closed: polling must find what they would have told."""
    await cast(stage)
    for number in range(stage.faults):
        await stage.until_busy(stage.random.choice(stage.workers), stage.random.randint(5, 20))
        begun = time.monotonic()
        killed = await _kill_listeners(stage.place)
        # It is no excuse: nothing may run twice because of it.
        stage.note(WAKEUPS_CUT, "those that listen", begun)
        stage.say(f"{number + 1} of {stage.faults} times cut: {killed} connections")


async def _kill_listeners(place: Place) -> int:
    """How many there were: at least one, after a short while in which they may be on their way back."""
    deadline = time.monotonic() + LISTENING_SECONDS
    while not (killed := await _kill_those_that_listen(place)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no process listened for {LISTENING_SECONDS:g} s: there was nothing to cut")
        await asyncio.sleep(AGAIN_SECONDS)
    return killed


async def _kill_those_that_listen(place: Place) -> int:
    if isinstance(place.server, Redis):
        told = await asyncio.to_thread(place.server.execute_command, "CLIENT", "KILL", "TYPE", "pubsub")
        return int(told.removeprefix(":"))
    admin = await asyncpg.connect(place.url)
    try:
        return int(await admin.fetchval(KILL_LISTENERS, LISTEN.application_name))
    finally:
        await admin.close()


async def connections(stage: Stage) -> None:
    """The server takes no more connections, and those that there are get cut."""
    await cast(stage)
    for number in range(stage.faults):
        await stage.until_busy(stage.random.choice(stage.workers), stage.random.randint(5, 20))
        begun = time.monotonic()
        match stage.place.store:
            case "postgres":
                await _fill_postgres(stage.place.url)
            case "mariadb":
                await _fill_mariadb(stage.place.url)
            case _:
                await _fill_redis(stage.place.url)
        stage.note("no connections left", None, begun)
        stage.say(f"{number + 1} of {stage.faults} times no connections left")


async def _fill_postgres(url: str) -> None:
    taken: list[asyncpg.Connection] = []
    try:
        await _take_all(url, taken)
        await taken[0].execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid not in (select unnest($1::int[]))",
            [connection.get_server_pid() for connection in taken],
        )
        for _ in range(int(FULL_SECONDS / AGAIN_SECONDS)):
            await _take_all(url, taken)
            await asyncio.sleep(AGAIN_SECONDS)
    finally:
        for connection in taken:
            await connection.close()


async def _take_all(url: str, taken: list[asyncpg.Connection]) -> None:
    with suppress(asyncpg.TooManyConnectionsError):
        while len(taken) < MOST_TAKEN:
            taken.append(await asyncpg.connect(url))


async def _fill_mariadb(url: str) -> None:
    """Its limit is set to fewer than there are; those that end make no room for others."""
    admin = await _connected_to_mariadb(url)
    taken = [admin]
    async with admin.cursor() as cursor:
        await cursor.execute("select @@global.max_connections")
        [most] = await cursor.fetchone()
        await cursor.execute(f"set global max_connections = {FEWEST_CONNECTIONS}")
        try:
            for _ in range(int(FULL_SECONDS / AGAIN_SECONDS)):
                ours = {connection.thread_id() for connection in taken}
                await cursor.execute(
                    "select id from information_schema.processlist where command <> 'Daemon'"
                )
                for (id_,) in await cursor.fetchall():
                    if id_ not in ours:
                        with suppress(MySQLError):  # It has gone by itself.
                            await cursor.execute(f"kill {id_}")
                with suppress(MySQLError):
                    while True:
                        taken.append(await _connected_to_mariadb(url))
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            await cursor.execute(f"set global max_connections = {most}")
    for connection in taken:
        connection.close()


async def _connected_to_mariadb(url: str) -> Any:
    parts = urlsplit(url)
    return await asyncmy.connect(
        host=parts.hostname, port=parts.port, user=parts.username, password=parts.password or ""
    )


async def _fill_redis(url: str) -> None:
    async with Client.from_url(url, single_connection_client=True) as admin:
        most = str((await admin.config_get("maxclients"))["maxclients"])
        await admin.config_set("maxclients", 1)
        try:
            for kind in ("normal", "pubsub"):
                await admin.client_kill_filter(_type=kind)
            await asyncio.sleep(FULL_SECONDS)
        finally:
            await admin.config_set("maxclients", most)


async def power_loss(stage: Stage) -> None:
    """The server is gone, and with it whatever it had not synced to its disk."""
    await cast(stage)
    for number in range(stage.faults):
        await stage.until_busy(stage.random.choice(stage.workers), stage.random.randint(5, 40))
        begun = time.monotonic()
        await stage.place.lose_power()
        stage.note("power lost", None, begun)
        stage.say(f"{number + 1} of {stage.faults} times without power")


async def clock_steps(stage: Stage) -> None:
    """The store's own clock is moved, forward and back, for longer than a lease."""
    clock = stage.place.clock
    assert clock is not None
    await cast(stage)
    for number in range(stage.faults):
        await stage.until_busy(stage.random.choice(stage.workers), stage.random.randint(5, 20))
        # Twice forward, twice back, and at the end where it was.
        await stage.step(clock, (STEP_SECONDS, 2 * STEP_SECONDS, STEP_SECONDS, 0)[number % 4])
        stage.say(f"{number + 1} of {stage.faults} steps: {clock.seconds:+} s")
    await stage.step(clock, 0)


async def disk_full(stage: Stage) -> None:
    """There is no byte left on the store's disk for a while. A server that ends because of it is started again."""
    disk, server = stage.place.disk, stage.place.server
    assert disk is not None
    await cast(stage)
    for number in range(stage.faults):
        await stage.until_busy(stage.random.choice(stage.workers), stage.random.randint(5, 20))
        begun, refused = time.monotonic(), _refused(stage)
        await asyncio.to_thread(disk.fill)
        if isinstance(server, Postgres):
            # Its log has room in files that are there already: let it need a new one. Then it cuts off whoever asked,
            # for it panics and recovers, or it takes no connection at all: a backend writes a file when it begins.
            with suppress(psycopg.OperationalError):
                await asyncio.to_thread(server.sql, "select pg_switch_wal()")
        await asyncio.sleep(FULL_SECONDS)
        if stage.place.store == "mariadb":
            await _refuses_much(stage.place.url)
            refused = -1
        # A disk that is full and that no one writes to shows nothing.
        await stage.until(
            partial(_is_refused, stage, refused), "a write that is refused", within=NOTICED_SECONDS
        )
        disk.free()
        ended = server is not None and await asyncio.to_thread(_is_started_again, server)
        stage.note("disk full", None, begun)
        stage.say(f"{number + 1} of {stage.faults} times full{', and the server ended' if ended else ''}")


async def _refuses_much(url: str) -> None:
    """Write more than there is room for, until MariaDB refuses it: its files have room for what is published here."""
    async with Database.at(url) as database:
        assert isinstance(database, SqlDatabase)
        try:
            async with asyncio.timeout(NOTICED_SECONDS), database.engine.connect() as connection:
                while True:
                    await connection.exec_driver_sql(MUCH)
        except DBAPIError as error:
            if not any(told in str(error) for told in ("1114", "1021")):
                raise


def _refused(stage: Stage) -> int:
    """How many publishes were told so far that they are not stored, or may not be."""
    return stage.seen.count("refused") + stage.seen.count("uncertain")


def _is_refused(stage: Stage, before: int) -> bool:
    return _refused(stage) > before


def _is_started_again(server: Server) -> bool:
    """Wait until it answers; whether it had to be started again for that.

    A server that recovers by itself may still end because the disk was full when it began to.
    """
    ended = False
    deadline = time.monotonic() + ANSWERS_SECONDS
    while True:
        if not server.running:
            ended = True
            server.start()
        try:
            server.probe()
        except NotReady:
            if time.monotonic() > deadline:
                raise
            time.sleep(AGAIN_SECONDS)
        else:
            return ended


async def old_snapshot(stage: Stage) -> None:
    """A transaction of another application stays open, and what is done with cannot be cleaned away."""
    await cast(stage)
    async with Database.at(stage.place.url) as database:
        assert isinstance(database, SqlDatabase)
        for number in range(stage.faults):
            begun = time.monotonic()
            async with database.old_snapshot():
                await stage.until_busy(stage.random.choice(stage.workers), 150)
            # It is no excuse: nothing may run twice because of it.
            stage.note(OLD_SNAPSHOT, "another application", begun)
            stage.say(f"{number + 1} of {stage.faults} times 150 runs beside an old snapshot")


SCENARIOS: Final = (
    Scenario(
        name="power-loss",
        about="the server is killed, and whatever it had not synced to its disk is gone",
        play=power_loss,
        faults=5,
        stores=("redis", EVERYSEC),
        where=that_can_lose_power,
        forgives={EVERYSEC: ASYNCHRONOUS},
    ),
    Scenario(
        name="clock-steps",
        about="the store's clock is moved forward and back by more than a lease",
        play=clock_steps,
        faults=8,
        where=with_movable_clock,
        bulk=200.0,
    ),
    Scenario(
        name="disk-full",
        about="no space is left on the disk of the store, for a while",
        play=disk_full,
        faults=3,
        where=on_a_small_disk,
        bulk=20.0,
        worker={"lease": 2.0},
        publisher={"pause": 0.05},
    ),
    Scenario(
        name="old-snapshot",
        about="a transaction of another application is held open: nothing can be cleaned away",
        play=old_snapshot,
        faults=2,
        stores=("sqlite", "postgres", "mariadb"),
    ),
    Scenario(
        name="connections",
        about="the server's connection limit is reached, and the connections there are get cut",
        play=connections,
        faults=4,
        stores=SERVERS,
    ),
    Scenario(
        name="crashes",
        about="kill -9 and restart of the server",
        play=crashes,
        faults=5,
        stores=(*SERVERS, *UNSYNCED),
        forgives=dict.fromkeys(UNSYNCED, ASYNCHRONOUS),
    ),
    Scenario(
        name="wakeups",
        about="LISTEN and pub/sub connections closed by the server",
        play=wakeups,
        faults=10,
        stores=("postgres", "redis"),
        # A worker looks when a lease of its own would end: a short one would hide that nothing wakes it.
        worker={"lease": 30.0},
    ),
)
