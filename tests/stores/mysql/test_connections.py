"""Few connections and few round trips, whatever the number of subscribers; what becomes of them; and wake-ups."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail.errors import StoreUnavailable, UnsuitableServer
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.mysql import MySQLStore
from nightmail.stores.mysql.dialect import MARIADB, MYSQL, dialect_of
from nightmail.stores.mysql.link import _refuse_unready
from nightmail.stores.mysql.wakeups import WakeupPoller
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from testkit.servers.mariadb import MariaDB
from tests.stores.mysql.support import connection, execute, open_store, run, sqlalchemy_url, watched_store
from tests.stores.shared.connections import Connections
from tests.stores.shared.event_loops import OneEventLoop
from tests.stores.shared.keeper import KeeperThread
from tests.stores.support import claim, done, until

pytestmark = pytest.mark.mysql


class TestConnections(Connections):
    """On this store."""


class TestKeeperThread(KeeperThread):
    """On this store."""


class TestEventLoops(OneEventLoop):
    """On this store."""


# ------------------------------------------------------------------------------------ how many


@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql"])
async def test_an_engine_lends_its_way_of_connecting(mysql_url: str, driver: str) -> None:
    engine = create_async_engine(sqlalchemy_url(mysql_url, driver))
    async with open_store(engine) as store:
        await store.check()
        await store.publish_batch([message(b"a"), message(b"b", priority=3)])
        await store.publish(message(b"t", timer_id="t"))
        deliveries = await claim(store)
        assert [delivery.body for delivery in deliveries] == [b"b", b"a", b"t"]
        assert await done(store, deliveries) == [WriteResult.WRITTEN] * 3
        assert await store.stats() == {}
    await engine.dispose()


# ------------------------------------------------------------------------------------ round trips


async def test_a_claim_takes_three_round_trips_and_a_settlement_one_whatever_the_batch(
    mysql_url: str,
) -> None:
    outcomes: list[Outcome] = [Done(), Retry(), Postpone(LEASE), Dead("rejected"), Release()]
    async with watched_store(mysql_url) as (store, interference):
        await claim(store)
        assert store._opening.now is not None
        await store._opening.now.settle_lane.run(lambda link: link.ask("select 1"))
        for size in (5, 500):
            await store.publish_batch([message(b"%d" % n) for n in range(size)])
            interference.packets.clear()
            deliveries = await claim(store, limit=size)
            # Which levels; take; lease and commit.
            assert len(interference.packets) == 3

            interference.packets.clear()
            batch = [Settlement(delivery, outcomes[n % 5]) for n, delivery in enumerate(deliveries)]
            assert set(await store.settle(batch)) == {WriteResult.WRITTEN}
            assert len(interference.packets) == 1
            await run(mysql_url, "delete from nightmail_messages")


async def test_a_claim_that_finds_nothing_begins_no_transaction(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await claim(store)
        interference.packets.clear()

        await claim(store)

        assert [len(packet) for packet in interference.packets] == [1, 1]


async def test_publishers_at_the_same_time_share_a_commit(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await store.publish(message())
        interference.packets.clear()

        await asyncio.gather(*(store.publish(message()) for _ in range(50)))

        assert len(interference.packets) <= 2


# --------------------------------------------------------------------------------------- wake-ups


async def test_what_another_process_publishes_is_noticed_by_the_next_look(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, most = 0, 0
    look = WakeupPoller._look

    async def counted(tower: WakeupPoller) -> float:
        nonlocal looks
        looks += 1
        return await look(tower)

    monkeypatch.setattr(WakeupPoller, "_look", counted)
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        with store.listen([QUEUE]) as bell:
            for n in range(12):
                await done(store, await claim(store))
                bell.clear()
                await asyncio.sleep(0.011 * n)  # At another moment between two looks each time.
                await other.publish(message())
                before = looks
                assert await bell.wait(10)
                most = max(most, looks - before)

    assert most <= 1


async def test_an_idle_process_asks_at_most_ten_times_a_second_however_many_listen(
    mysql_url: str,
) -> None:
    async with watched_store(mysql_url) as (store, interference):
        bells = [store.listen([QUEUE, f"queue {n}"]) for n in range(10)]
        for bell in bells:
            bell.__enter__()
        await asyncio.sleep(0.3)
        interference.packets.clear()
        began = time.monotonic()

        await asyncio.sleep(1.0)

        # On a busy machine the second is longer.
        assert 1 <= len(interference.packets) <= 10 * (time.monotonic() - began)
        for bell in bells:
            bell.__exit__(None, None, None)


async def test_a_message_that_another_has_locked_is_asked_for_less_and_less_often(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        await store.publish(message(timer_id="t"))
        rings = 0
        with store.listen([QUEUE]) as bell:
            await own.begin()
            assert await store.cancel(QUEUE, "t", transaction=own)
            deadline = asyncio.get_running_loop().time() + 2.0
            while (left := deadline - asyncio.get_running_loop().time()) > 0:
                bell.clear()
                if await bell.wait(left):
                    rings += 1
                    assert await claim(store) == []
            assert 1 <= rings <= 5

            bell.clear()
            await own.rollback()
            assert await bell.wait(2)
            assert len(await claim(store)) == 1


async def test_a_commit_of_a_callers_own_is_noticed_too(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        with store.listen([QUEUE]) as bell:
            await own.begin()
            await store.publish(message(), transaction=own)
            bell.clear()
            await own.commit()

            assert await bell.wait(1)


async def test_a_key_that_a_callers_commit_frees_is_noticed_though_the_next_message_came_before_it(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other, connection(mysql_url) as own:
        await store.publish(message(b"first", ordering_key="k"))
        first = await claim(store)
        with store.listen([QUEUE]) as bell:
            await own.begin()
            await store.ack(first, transaction=own)
            await other.publish(message(b"second", ordering_key="k"))
            assert await claim(store) == []
            bell.clear()
            await own.commit()

            # Sooner than an idle worker would look by itself.
            assert await bell.wait(4)
            assert [delivery.body for delivery in await claim(store)] == [b"second"]


async def test_an_outage_of_the_watch_is_left_to_the_workers_to_tell_and_everything_rings_after_it(
    mysql_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with watched_store(mysql_url) as (store, interference):
        with caplog.at_level(logging.WARNING), store.listen([QUEUE]) as bell:

            def refuse(_: tuple[str, ...]) -> None:
                raise ConnectionResetError("gone")

            interference.before = refuse
            await until(lambda: store.look_interval.total_seconds() == 1)
            await asyncio.sleep(1.2)
            assert not [record for record in caplog.records if "no wake-ups" in record.message]

            bell.clear()
            interference.before = lambda _: None
            assert await bell.wait(5)
            assert store.look_interval.total_seconds() == 5


# ------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("version", "dialect"),
    [
        ("10.11.19-MariaDB-0+deb12u1", MARIADB),
        ("5.5.5-10.6.16-MariaDB-log", MARIADB),
        ("11.8.2-MariaDB", MARIADB),
        ("8.0.16", MYSQL),
        ("8.4.3-log", MYSQL),
        ("9.1.0", MYSQL),
    ],
)
def test_servers_that_will_do_are_told_apart(version: str, dialect: Any) -> None:
    assert dialect_of(version) is dialect


@pytest.mark.parametrize(
    "version",
    ["5.7.44-log", "8.0.0-dmr", "8.0.11", "10.5.23-MariaDB", "5.5.5-10.3.39-MariaDB", "whatever"],
)
def test_servers_that_lack_something_are_refused_with_what_to_use_instead(version: str) -> None:
    with pytest.raises(UnsuitableServer, match=r"use (10\.6\.0|8\.0\.16) or newer"):
        dialect_of(version)


async def test_an_old_server_is_refused_and_not_taken_for_one_that_is_down(
    mysql_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nightmail.stores.mysql.link.dialect_of", lambda _: dialect_of("5.7.44"))
    store = MySQLStore(mysql_url)
    await store.open()

    with pytest.raises(UnsuitableServer):
        await store.ping()
    await store.close()


@pytest.mark.parametrize(
    ("status", "usable"),
    [
        ({}, True),
        ({"wsrep_ready": "OFF", "wsrep_connected": "OFF", "wsrep_cluster_status": "Disconnected"}, True),
        ({"wsrep_ready": "ON", "wsrep_connected": "ON", "wsrep_cluster_status": "Primary"}, True),
        ({"wsrep_ready": "OFF", "wsrep_connected": "ON", "wsrep_cluster_status": "Primary"}, False),
        ({"wsrep_ready": "OFF", "wsrep_connected": "ON", "wsrep_cluster_status": "non-Primary"}, False),
        ({"wsrep_ready": "OFF", "wsrep_connected": "OFF", "wsrep_cluster_status": "non-Primary"}, False),
    ],
)
def test_a_node_of_a_cluster_that_is_not_ready_is_refused(status: dict[str, str], usable: bool) -> None:
    if usable:
        _refuse_unready(status)
    else:
        with pytest.raises(StoreUnavailable, match="not ready"):
            _refuse_unready(status)


async def test_every_connection_is_at_read_committed(
    mariadb_server: MariaDB,
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await done(store, [])
        await claim(store)
        assert store._opening.now is not None
        for lane in (
            store._opening.now.claim_lane,
            store._opening.now.settle_lane,
            store._opening.now.publish_lane,
        ):
            (found,) = await lane.run(lambda link: link.ask("select @@tx_isolation, @@autocommit"))
            assert found.rows[0] == ("READ-COMMITTED", 1)


async def test_a_session_that_does_not_go_to_read_committed_is_refused(
    mysql_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nightmail.stores.mysql.link.READ_COMMITTED", "SOMETHING-ELSE")
    store = MySQLStore(mysql_url)
    await store.open()

    with pytest.raises(StoreUnavailable, match="READ-COMMITTED"):
        await store.ping()
    await store.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://root@localhost/shop",
        "mysql://root:secret@localhost",
        "mysql://root:secret@localhost:notaport/shop",
        "mysql://root:secret@localhost/shop?nonsense=1",
    ],
)
def test_a_url_that_cannot_be_is_refused_without_quoting_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="MySQL") as raised:
        MySQLStore(url)

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "mysql+asyncmy", "mariadb+aiomysql", "mysql+pymysql"])
async def test_every_spelling_of_the_url_is_understood(mysql_url: str, scheme: str) -> None:
    store = MySQLStore(mysql_url.replace("mysql", scheme, 1) + "?charset=utf8mb4")
    await store.open()
    await store.ping()
    await store.close()


async def test_a_wrong_password_is_told_without_quoting_it(mysql_url: str) -> None:
    store = MySQLStore(mysql_url.replace("root@", "stranger:secret@"))
    await store.open()

    with pytest.raises(StoreUnavailable, match="1045") as raised:
        await store.ping()

    assert "secret" not in str(raised.value)
    await store.close()


async def test_what_is_cancelled_once_it_was_sent_is_carried_out_all_the_same(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference), connection(mysql_url) as own:
        await store.publish(message(timer_id="t", due=LEASE))
        sent = asyncio.Event()
        interference.before = lambda statements: sent.set() if "begin" in statements else None
        await own.begin()
        await execute(own, "select 1 from nightmail_messages for update")
        task = asyncio.create_task(store.cancel(QUEUE, "t"))
        await sent.wait()
        task.cancel()
        await asyncio.wait([task])
        await own.rollback()

        assert task.cancelled()
        # It was refused for the moment, and the caller that would have asked again is gone: all or nothing.
        assert len(await store.peek()) in (0, 1)
        assert await store.publish(message(b"and on")) is not None
