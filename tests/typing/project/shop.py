"""A shop as its authors would write it: mypy in strict mode has nothing to say, and no line needs an ignore."""

from datetime import timedelta
from typing import Annotated, Any

from faststream import BaseMiddleware, Depends, ExceptionMiddleware, FastStream
from faststream.exceptions import RejectMessage
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from nightmail import ExponentialRetry, OutboxBroker, OutboxResponse, OutboxRouter, PostponeMessage
from nightmail.annotations import (
    ContextRepo,
    Logger,
    NoCast,
    OutboxBatchMessage,
    OutboxMessage,
    OutboxSession,
)
from nightmail.annotations import OutboxBroker as TheBroker

engine = create_async_engine("postgresql+asyncpg://localhost/shop")
sessions = async_sessionmaker(engine, expire_on_commit=False)
errors = ExceptionMiddleware()


@errors.add_handler(KeyError, publish=True)
async def on_key_error(error: KeyError) -> str:
    return "missing"


class Order(BaseModel):
    id: int
    item: str


class Timed(BaseMiddleware):
    async def on_receive(self) -> None:
        await super().on_receive()


async def parser(msg: Any, original: Any) -> Any:
    return await original(msg)


router = OutboxRouter(prefix="mail.", middlewares=[Timed])
broker = OutboxBroker(
    engine,
    session_factory=sessions,
    retry=ExponentialRetry(max_attempts=5),
    middlewares=[Timed, errors],
    parser=parser,
    routers=[router],
)
app = FastStream(broker)
receipts = broker.publisher("receipts", activate_in=timedelta(minutes=1))


async def rate(order: Order) -> float:
    return 1.2 if order.item else 1.0


@receipts
@broker.subscriber("orders", max_workers=3)
async def take(order: Order, msg: OutboxMessage, tax: Annotated[float, Depends(rate)]) -> OutboxResponse:
    if not order.item:
        raise RejectMessage(reason="nothing ordered")
    if msg.attempt == 1:
        raise PostponeMessage(timedelta(minutes=10))
    return OutboxResponse({"id": order.id, "tax": tax}, timer_id=f"receipt-{order.id}")


@router.subscriber("confirmations")
async def confirm(order_id: int, session: OutboxSession, the_broker: TheBroker) -> None:
    await the_broker.publish({"id": order_id}, "orders", session=session)
    await session.flush()


@broker.subscriber("clicks", batch=True, max_batch=500)
async def count(clicks: NoCast[list[int]], msg: OutboxBatchMessage, logger: Logger) -> None:
    logger.info("%d clicks", len(clicks))
    for click, item in zip(clicks, msg.items, strict=True):
        if click < 0:
            await item.reject("negative")


@app.after_startup
async def warm_up(context: ContextRepo) -> None:
    context.set_global("is_warm", await broker.ping(timeout=5))


async def buy(item: str, session: AsyncSession) -> int | None:
    return await broker.publish(
        Order(id=1, item=item),
        "orders",
        session=session,
        timer_id="order-1",
        on_conflict="replace",
        activate_in=timedelta(days=1),
    )


async def by_hand() -> None:
    subscriber = broker.subscriber("letters", persistent=False)
    async for message in subscriber:
        await message.ack()
    one = await subscriber.get_one(timeout=1)
    if one is not None:
        await one.nack(delay=5)
