"""The application: what it is made of, and how it starts and stops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from faststream_fastapi import FastStreamAPI
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.fastapi_app import confirmations, orders
from examples.fastapi_app.tables import Base
from nightmail import OutboxBroker
from nightmail.stores.sqlite import begin_immediate


def create_app(file: Path) -> FastStreamAPI:
    """The application on this SQLite file. Give it to a server as it is: it is an ASGI application."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    # SQLite has one writer at a time: announce at BEGIN that we are going to write.
    begin_immediate(engine)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    broker = OutboxBroker(
        f"sqlite:///{file}", session_factory=sessions, routers=[confirmations.make_router()], logger=None
    )

    @asynccontextmanager
    async def life(web: FastAPI) -> AsyncIterator[None]:
        # Around the broker's: the tables are there before it starts, the engine until it has stopped.
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()

    web = FastAPI(title="Shop", lifespan=life)
    web.state.sessions = sessions
    web.state.broker = broker
    web.include_router(orders.router)
    # Last, when the broker has its handlers. Without `safe_connection` a broker that cannot start would only be
    # logged, and the application would run and deliver nothing.
    return FastStreamAPI(broker, application=web, safe_connection=True, asyncapi_path="/asyncapi")
