"""Where the Postgres store gets its connections from: a URL, or an engine of the caller's."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail.errors import StoreUnavailable
from nightmail.store import Extend
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from tests.stores.postgres.support import connection, open_store, sqlalchemy_url
from tests.stores.support import claim, until

pytestmark = pytest.mark.postgres


async def test_an_engine_lends_its_way_of_connecting_and_stays_the_callers(postgres_url: str) -> None:
    engine = create_async_engine(
        sqlalchemy_url(postgres_url), connect_args={"server_settings": {"search_path": "elsewhere, public"}}
    )
    asked: list[Any] = []
    event.listen(engine.sync_engine, "do_connect", lambda *arguments: asked.append(arguments))
    async with connection(postgres_url) as own:
        await own.execute("create schema elsewhere")
    async with open_store(engine) as store:
        await store.publish(message())
        deliveries = await claim(store)
        renewed = threading.Event()

        async def keep(extend: Extend) -> None:
            await extend(deliveries, LEASE)
            renewed.set()

        # On another thread and another event loop than the engine was made on.
        async with store.run_on_keeper_thread(keep):
            assert await asyncio.to_thread(renewed.wait, 20)
        with store.listen([QUEUE]):
            await until(lambda: store.listening)
        async with connection(postgres_url) as own:
            assert await own.fetchval("select to_regclass('elsewhere.nightmail_messages')") is not None

    # migrate, publish, claim, keeper, listen
    assert len(asked) == 5
    async with engine.connect() as theirs:
        assert (await theirs.exec_driver_sql("select 1")).scalar() == 1
    await engine.dispose()


async def test_an_engine_with_another_driver_is_refused() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")

    with pytest.raises(ValueError, match="asyncpg"):
        PostgresStore(engine)

    await engine.dispose()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg", "postgres+asyncpg"])
async def test_every_way_to_write_the_scheme_is_understood(postgres_url: str, scheme: str) -> None:
    url = postgres_url.replace("postgresql://", f"{scheme}://")

    async with open_store(f"{url}?prepared_statement_cache_size=0&statement_cache_size=0") as store:
        await store.publish(message())
        assert len(await claim(store)) == 1


@pytest.mark.parametrize(
    "url",
    [
        "mysql://shop:hunter2@localhost/shop",
        "postgresql://shop:hunter2@[localhost/shop",
        "postgresql://shop:hunter2@localhost:none/shop",
        "hunter2",
    ],
)
def test_a_wrong_url_is_refused_without_telling_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="postgresql://") as raised:
        PostgresStore(url)

    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:hunter2@localhost:1/shop",
        "postgresql://shop:hunter2@nowhere.invalid/shop",
    ],
)
async def test_a_server_that_cannot_be_reached_is_told_without_telling_the_password(url: str) -> None:
    store = PostgresStore(url)
    await store.open()

    with pytest.raises(StoreUnavailable) as raised:
        await store.ping()

    assert "hunter2" not in f"{raised.value!r} {raised.value.__cause__!r}"
    await store.close()


async def test_an_engine_that_cannot_connect_is_a_store_that_is_unavailable() -> None:
    engine = create_async_engine("postgresql+asyncpg://shop:hunter2@localhost:1/shop")
    store = PostgresStore(engine)
    await store.open()

    for verb in (store.ping, lambda: claim(store), lambda: store.publish(message())):
        with pytest.raises(StoreUnavailable):
            await verb()
    await store.close()
    await engine.dispose()


@pytest.mark.parametrize(
    "query",
    [
        "ssl=disable&sslmode=require",
        "ssl=require&ssl=disable",
        "sslmode=verify-full&sslmode=disable",
        "sslmode=disable&sslrootcert=/ca.pem",
        "ssl=perhaps",
        "sslmode=hunter2",
        "statement_cache_size=many",
    ],
)
def test_options_of_a_url_that_contradict_each_other_are_refused(query: str) -> None:
    with pytest.raises(ValueError, match="a Postgres URL") as raised:
        PostgresStore(f"postgresql://shop:hunter2@localhost/shop?{query}")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "query", ["ssl=require&sslmode=require", "sslmode=verify-full&sslrootcert=/ca.pem", "ssl=prefer"]
)
def test_options_of_a_url_that_agree_are_taken(query: str) -> None:
    PostgresStore(f"postgresql://localhost/shop?{query}")
