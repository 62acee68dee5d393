"""The walk of a message is what ARCHITECTURE says it is, and stays short."""

from __future__ import annotations

import asyncio

import pytest
from faststream import AckPolicy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from nightmail import OutboxBroker
from nightmail.annotations import OutboxMessage
from nightmail.observe import Observer
from tests.walk.page import assert_shown
from tests.walk.tracing import walked

QUEUE = "orders"
PAYLOAD = "hello"


class Settled(Observer):
    """Knows when a delivery has ended."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def settled(self, settlements: object) -> None:
        self.event.set()


@pytest.mark.postgres
async def test_a_publish_in_a_session_on_postgres(postgres_url: str) -> None:
    engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+asyncpg://"))
    broker = OutboxBroker(postgres_url, create_tables=True, logger=None)
    async with broker, engine.connect() as connection:
        session = AsyncSession(connection)
        # The first one learns which tables are ours.
        await broker.publish(PAYLOAD, QUEUE, session=session)

        with walked() as walk:
            await broker.publish(PAYLOAD, QUEUE, session=session)

        await session.close()
    await engine.dispose()
    assert_shown("publish with an AsyncSession, Postgres", walk.carrying, at_most=8)


async def _delivered(url: str) -> list[str]:
    settled = Settled()
    broker = OutboxBroker(url, create_tables=True, logger=None, observer=settled)

    async def handler(body: str) -> None:
        pass

    broker.subscriber(QUEUE)(handler)
    async with broker:
        await broker.start()
        await broker.publish(PAYLOAD, QUEUE)
        await settled.event.wait()
        settled.event.clear()
        with walked(handler) as walk:
            # On another thread, which is not followed: the walk is the delivery's alone.
            await asyncio.to_thread(asyncio.run, _publish(url))
            await settled.event.wait()
    return walk.carrying


async def _publish(url: str) -> None:
    async with OutboxBroker(url, logger=None) as broker:
        await broker.publish(PAYLOAD, QUEUE)


@pytest.mark.postgres
async def test_from_the_claim_to_the_deletion_on_postgres(postgres_url: str) -> None:
    assert_shown("claim to deletion, Postgres", await _delivered(postgres_url), at_most=20)


@pytest.mark.redis
async def test_from_the_claim_to_the_deletion_on_one_redis_server(redis_url: str) -> None:
    assert_shown("claim to deletion, one Redis server", await _delivered(redis_url), at_most=22)


@pytest.mark.postgres
async def test_an_ack_in_a_session_on_postgres(postgres_url: str) -> None:
    engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+asyncpg://"))
    broker = OutboxBroker(postgres_url, create_tables=True, logger=None)
    walks: list[list[str]] = []
    two = asyncio.Event()

    # One at a time: the other one's functions would be followed too.
    @broker.subscriber(QUEUE, ack_policy=AckPolicy.MANUAL, max_workers=1)
    async def handler(body: str, message: OutboxMessage) -> None:
        async with AsyncSession(engine) as session:
            _ = await session.connection()
            with walked() as walk:
                await message.ack(session=session)
            await session.commit()
        walks.append(walk.carrying)
        if len(walks) == 2:
            two.set()

    async with broker:
        await broker.start()
        # The first one learns which tables are ours.
        await broker.publish(PAYLOAD, QUEUE)
        await broker.publish(PAYLOAD, QUEUE)
        await two.wait()
    await engine.dispose()
    assert_shown("ack in a session, Postgres", walks[1], at_most=12)
