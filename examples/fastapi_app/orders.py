"""What clients ask for. An order and its messages are committed together, or none of them is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from examples.fastapi_app.tables import Order
from nightmail import OutboxBroker

router = APIRouter()


async def transaction(request: Request) -> AsyncIterator[AsyncSession]:
    """A session, committed when the request went well and rolled back when it did not."""
    async with request.app.state.sessions.begin() as session:
        yield session


def the_broker(request: Request) -> OutboxBroker:
    """The application's broker."""
    broker: OutboxBroker = request.app.state.broker
    return broker


# `function`: committed before the response is sent. By default FastAPI does this afterwards, when the client has
# already been told that all went well.
Session = Annotated[AsyncSession, Depends(transaction, scope="function")]
Broker = Annotated[OutboxBroker, Depends(the_broker)]


class NewOrder(BaseModel):
    """What a client orders."""

    item: str
    card_is_good: bool = True


class Status(BaseModel):
    """How an order stands."""

    id: int
    confirmed: bool
    paid: bool


@router.post("/orders", status_code=201)
async def place(new: NewOrder, session: Session, broker: Broker) -> Status:
    """Store an order; its confirmation goes out now, and a reminder in three days unless it is paid by then."""
    order = Order(item=new.item, confirmed=False, paid=False)
    session.add(order)
    await session.flush()  # The database gives the order its id.
    body = {"order_id": order.id}
    await broker.publish(body, "confirmations", session=session)
    await broker.publish(
        body, "reminders", timer_id=f"order-{order.id}", activate_in=timedelta(days=3), session=session
    )
    if not new.card_is_good:
        raise HTTPException(402, "the card was declined")
    return Status(id=order.id, confirmed=False, paid=False)


@router.post("/orders/{order_id}/payment")
async def pay(order_id: int, session: Session, broker: Broker) -> Status:
    """Pay an order: no reminder goes out."""
    order = await _found(order_id, session)
    order.paid = True
    await broker.cancel_timer("reminders", f"order-{order_id}", session=session)
    return Status(id=order.id, confirmed=order.confirmed, paid=order.paid)


@router.get("/orders/{order_id}")
async def look(order_id: int, session: Session) -> Status:
    """How an order stands."""
    order = await _found(order_id, session)
    return Status(id=order.id, confirmed=order.confirmed, paid=order.paid)


@router.get("/health", status_code=204)
async def health(broker: Broker) -> None:
    """For monitoring: the store answers, and the workers are healthy."""
    if not await broker.ping():
        raise HTTPException(503, "the broker is not well")


async def _found(order_id: int, session: AsyncSession) -> Order:
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "there is no such order")
    return order
