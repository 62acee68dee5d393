"""The shop: its orders, and the broker on the same file."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from nightmail import ConstantRetry, OutboxBroker
from nightmail.stores.sqlite import begin_immediate

LEASE_SECONDS = 2.0


class Base(DeclarativeBase):
    """The shop's own tables."""


class Order(Base):
    """A customer bought something."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Shop:
    """Orders and messages in one database, so that one transaction holds both."""

    def __init__(self, file: Path) -> None:
        self.engine: AsyncEngine = create_async_engine(f"sqlite+aiosqlite:///{file}")
        # SQLite has one writer at a time: announce at BEGIN that we are going to write.
        begin_immediate(self.engine)
        self.session: async_sessionmaker[AsyncSession] = async_sessionmaker(
            self.engine, expire_on_commit=False
        )
        self.broker = OutboxBroker(
            f"sqlite:///{file}",
            # A dead process's messages go to another process after this long; the default is 20 seconds.
            lease_ttl_seconds=LEASE_SECONDS,
            retry=ConstantRetry(delay=0.2),
            logger=None,
        )

    async def open(self) -> None:
        """Make the shop's tables; the broker makes its own."""
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)

    async def close(self) -> None:
        """Stop the workers and close the file."""
        await self.broker.stop()
        await self.engine.dispose()

    async def buy(self, item: str, *, fails: bool = False) -> int:
        """Store an order and its message in one transaction."""
        async with self.session() as session, session.begin():
            order = Order(item=item)
            session.add(order)
            await session.flush()  # The database gives the order its id.
            await self.broker.publish(order.id, "confirmations", session=session)
            if fails:
                raise RuntimeError("the card was declined")
        return order.id

    async def bought(self) -> list[str]:
        """Everything that was actually sold."""
        async with self.session() as session:
            return list(await session.scalars(select(Order.item).order_by(Order.id)))
