"""What happens later. A handler has FastAPI's dependencies, and a session that commits with its message."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.ext.asyncio import AsyncSession

from examples.fastapi_app.tables import Order
from nightmail import OutboxMessage, OutboxRoute, OutboxRouter, open_session


class Mailer:
    """Sends mail; this one only says so."""

    async def send(self, text: str, *, key: str) -> None:
        """Send a mail, once for each key."""
        print(f"  mail {key}: {text}", flush=True)


def the_mailer() -> Mailer:
    """A dependency like any other: tests override it with `dependency_overrides`."""
    return Mailer()


async def the_message(request: Request) -> OutboxMessage:
    """The message that is being handled."""
    # `Context("message")` finds nothing: faststream_fastapi 1.4 looks for it where FastStream 0.7.8 does not put it.
    message: OutboxMessage = request.app.state.broker.context.get_local("message")
    return message


TheMailer = Annotated[Mailer, Depends(the_mailer)]
# What `OutboxSession` and `OutboxMessage` of `nightmail.annotations` are in an application without FastAPI.
Session = Annotated[AsyncSession, Depends(open_session)]
TheMessage = Annotated[OutboxMessage, Depends(the_message)]


async def confirm(order_id: int, session: Session, mailer: TheMailer, msg: TheMessage) -> None:
    """Confirm an order. The order is marked, and the message gone, in one transaction, or neither."""
    order = await session.get_one(Order, order_id)
    # A mail cannot be rolled back: if this runs twice, the mailer recognises the key.
    await mailer.send(f"thank you for the {order.item}", key=f"confirmation-{msg.id}")
    order.confirmed = True


async def remind(order_id: int, session: Session, mailer: TheMailer, msg: TheMessage) -> None:
    """Remind of an order that was not paid."""
    order = await session.get_one(Order, order_id)
    await mailer.send(f"the {order.item} waits to be paid", key=f"reminder-{msg.id}")


def make_router() -> OutboxRouter:
    """The handlers and their queues, for one application: the first that gets a router keeps it."""
    return OutboxRouter(handlers=[OutboxRoute(confirm, "confirmations"), OutboxRoute(remind, "reminders")])
