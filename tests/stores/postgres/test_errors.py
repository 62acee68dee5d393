"""Every error of the driver's on a connection of ours is one of ours, with the driver's as its cause."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail.errors import (
    NightmailError,
    NotAllowed,
    PublishUncertain,
    Refused,
    StoreError,
    StoreUnavailable,
)
from nightmail.stores.postgres import PostgresStore, lane
from nightmail.stores.postgres.connect import connector
from nightmail.stores.postgres.lane import Lane
from nightmail.stores.postgres.link import Role
from nightmail.stores.sql.lane import Locked
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from tests.stores.postgres.support import backends, connection, open_store, sqlalchemy_url
from tests.stores.shared.silent import silent_server
from tests.stores.support import claim

pytestmark = pytest.mark.postgres


def raised_by_server(state: str) -> Callable[[Any], Awaitable[Any]]:
    """Work that the server answers with this SQLSTATE."""

    async def work(link: Any) -> None:
        await link.execute(f"do $$ begin raise exception 'told so' using errcode = '{state}'; end $$")

    return work


def raised_by_driver(error: BaseException) -> Callable[[Any], Awaitable[Any]]:
    async def work(*_: Any) -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("state", "expected", "kept"),
    [
        ("08006", PublishUncertain, False),
        ("22003", Refused, True),
        ("23514", Refused, True),
        ("25006", StoreUnavailable, False),
        ("26000", StoreUnavailable, False),
        ("40001", StoreUnavailable, True),
        ("40P01", StoreUnavailable, True),
        ("42501", NotAllowed, True),
        ("42601", StoreError, True),
        ("53100", StoreUnavailable, False),
        ("53300", StoreUnavailable, False),
        ("54000", Refused, True),
        ("55P03", Locked, True),
        ("57014", StoreUnavailable, True),
        ("57P01", PublishUncertain, False),
        ("57P03", StoreUnavailable, False),
        ("58030", PublishUncertain, False),
        ("P0001", Refused, True),
        ("XX000", PublishUncertain, False),
        ("ZZ999", Refused, True),
    ],
)
async def test_what_the_server_answers(
    postgres_url: str, state: str, expected: type[Exception], kept: bool
) -> None:
    lane = Lane(Role("asked"), connector(postgres_url))

    with pytest.raises(NightmailError) as raised:
        await lane.run(raised_by_server(state), lost=PublishUncertain)

    assert type(raised.value) is expected
    assert isinstance(raised.value.__cause__, asyncpg.PostgresError)
    assert raised.value.__cause__.sqlstate == state
    assert (lane.link is not None) is kept
    assert await lane.run(lambda link: link.fetchval("select 1")) == 1
    await lane.close()


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InternalClientError("got result for unknown protocol state 3"),
        asyncpg.InterfaceError("cannot perform operation: another operation is in progress"),
        asyncpg.ProtocolError("unexpected message"),
        ConnectionResetError(104, "Connection reset by peer"),
        EOFError(),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_the_driver_raises(postgres_url: str, error: Exception) -> None:
    lane = Lane(Role("asked"), connector(postgres_url))

    with pytest.raises(PublishUncertain) as raised:
        await lane.run(raised_by_driver(error), lost=PublishUncertain)

    assert raised.value.__cause__ is error
    assert lane.link is None
    await lane.close()


@pytest.mark.parametrize(
    "error",
    [
        asyncio.InvalidStateError("invalid state"),
        AttributeError("'NoneType' object has no attribute 'set_result'"),
        BufferError("unexpected trailing 4 bytes in buffer"),
        RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_else_the_driver_raises_means_that_the_connection_is_lost(
    postgres_url: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Lane(Role("asked"), connector(postgres_url))
    await lane.run(lambda link: link.execute("select 1"))

    with monkeypatch.context() as patch, pytest.raises(PublishUncertain) as raised:
        patch.setattr(asyncpg.Connection, "fetch", raised_by_driver(error))
        await lane.run(lambda link: link.fetch("select 1"), lost=PublishUncertain)

    assert type(error).__name__ in str(raised.value)
    assert raised.value.__cause__ is error
    assert lane.link is None
    await lane.close()


async def test_a_value_that_the_driver_refuses_is_refused_without_quoting_it(postgres_url: str) -> None:
    lane = Lane(Role("asked"), connector(postgres_url))
    secret = "hunter2"

    with pytest.raises(Refused) as raised:
        await lane.run(lambda link: link.fetch("select $1::integer", secret))

    assert secret not in "".join(traceback.format_exception(raised.value))
    await lane.close()


async def test_connections_ended_by_the_server_under_load_raise_nothing_but_our_errors(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        stored: list[bytes] = []
        uncertain: list[bytes] = []
        refused: list[bytes] = []
        strange: Counter[str] = Counter()
        ended = asyncio.Event()

        async def publish(number: int) -> None:
            count = 0
            while not ended.is_set():
                count += 1
                body = b"%d %d" % (number, count)
                named = count % 3 == 0
                try:
                    await store.publish(message(body, timer_id=body.decode() if named else None))
                    stored.append(body)
                except PublishUncertain:
                    uncertain.append(body)
                except StoreUnavailable:
                    refused.append(body)
                except Exception as error:  # noqa: BLE001 - counted
                    strange[repr(error)] += 1

        async def work() -> None:
            while not ended.is_set():
                try:
                    await store.claim(["others"], limit=1, lease=LEASE, token=uuid4())
                    await asyncio.sleep(0)
                except StoreUnavailable:
                    pass
                except Exception as error:  # noqa: BLE001 - counted
                    strange[repr(error)] += 1

        workers = [asyncio.create_task(publish(number)) for number in range(16)]
        workers.append(asyncio.create_task(work()))
        killed = 0
        async with asyncio.timeout(120):
            while killed < 60:
                for pid in await backends(own):
                    killed += await own.fetchval("select pg_terminate_backend($1)::integer", pid)
                await asyncio.sleep(0.005)
        ended.set()
        await asyncio.gather(*workers)

        assert strange == {}
        rows = await own.fetch("select body from nightmail_messages where queue = $1", QUEUE)
        found = [row["body"] for row in rows]
        assert len(set(found)) == len(found)
        assert set(stored) <= set(found)
        # Whatever was not stored was told so, and what may have been was told that.
        assert not set(refused) & set(found)
        assert set(found) <= set(stored) | set(uncertain)


async def test_a_connection_that_ended_while_idle_is_not_noticed(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        for number in range(10):
            await store.publish(message(timer_id=f"t{number}"))
            await store.publish(message())
            await claim(store)
            for pid in await backends(own):
                await own.fetchval("select pg_terminate_backend($1, 5000)", pid)


# ------------------------------------------------------------------------- where and why not connected


async def refusal(source: Any) -> str:
    store = PostgresStore(source)
    await store.open()
    try:
        with pytest.raises(StoreUnavailable) as raised:
            await store.ping()
    finally:
        await store.close()
    assert "hunter2" not in repr(raised.value) + repr(raised.value.__cause__)
    return str(raised.value)


async def test_a_missing_database_is_told_in_the_servers_own_words(postgres_url: str) -> None:
    url = postgres_url.rpartition("/")[0].replace("postgres@", "postgres:hunter2@") + "/nowhere"
    port = url.rpartition(":")[2].partition("/")[0]
    engine = create_async_engine(sqlalchemy_url(url))
    for source in (url, engine):
        told = await refusal(source)
        assert f"127.0.0.1:{port}, database 'nowhere', user 'postgres'" in told
        assert 'database "nowhere" does not exist' in told
    await engine.dispose()


async def test_a_missing_user_is_told_in_the_servers_own_words(postgres_url: str) -> None:
    told = await refusal(postgres_url.replace("postgres@", "shop:hunter2@"))

    assert 'role "shop" does not exist' in told


async def test_a_server_that_is_not_there_is_told_with_its_address() -> None:
    assert "cannot connect to Postgres at 127.0.0.1:1, database 'shop', user 'shop': " in await refusal(
        "postgresql://shop:hunter2@127.0.0.1:1/shop"
    )
    told = await refusal("postgresql://shop:hunter2@nowhere.invalid/shop")
    assert "nowhere.invalid:5432" in told
    assert "gaierror" not in told


async def test_a_server_that_does_not_answer_is_told_with_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "CONNECT_SECONDS", 0.2)
    async with silent_server() as port:
        url = f"postgresql://shop:hunter2@127.0.0.1:{port}/shop"
        engine = create_async_engine(sqlalchemy_url(url))
        for source in (url, engine):
            assert await refusal(source) == (
                f"cannot connect to Postgres at 127.0.0.1:{port}, database 'shop', user 'shop': no answer in time"
            )
        await engine.dispose()
