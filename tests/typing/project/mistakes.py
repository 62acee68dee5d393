"""What mypy must find. The mark at a line's end is the code of the error that belongs to it."""

from datetime import timedelta

from nightmail import (
    ConstantRetry,
    Delivery,
    ExponentialRetry,
    Message,
    OutboxBroker,
    OutboxResponse,
    OutboxRouter,
    Worker,
    WorkerSettings,
    open_store,
)
from nightmail.annotations import OutboxMessage

OutboxBroker(5)  # wrong: arg-type
OutboxBroker(max_wokers=5)  # wrong: call-arg
OutboxBroker(max_workers="5")  # wrong: arg-type
OutboxBroker(retry=3)  # wrong: arg-type
OutboxBroker(retry=ExponentialRetry(innitial=1))  # wrong: call-arg
OutboxRouter(prefx="a.")  # wrong: call-arg
ConstantRetry(delay="1")  # wrong: arg-type
WorkerSettings(max_workers="3")  # wrong: arg-type
OutboxResponse("x", activate_in="soon")  # wrong: arg-type
Message(queue="q", body="text")  # wrong: arg-type
Message(queue="q", body=b"", on_conflict="ignore")  # wrong: arg-type

broker = OutboxBroker()
broker.subscriber("q", max_worker=1)  # wrong: call-arg
broker.subscriber(5)  # wrong: arg-type
broker.subscriber("q", ack_policy="ack")  # wrong: arg-type
broker.subscriber("q", batch="yes")  # wrong: arg-type
broker.publisher("q", activate_in="soon")  # wrong: arg-type
broker.publisher("q", sesion=None)  # wrong: call-arg


async def publish() -> None:
    await broker.publish("x")  # wrong: call-arg
    await broker.publish("x", "q", activate_in="5")  # wrong: arg-type
    await broker.publish("x", "q", activate_at="tomorrow")  # wrong: arg-type
    await broker.publish("x", "q", delay=5)  # wrong: call-arg
    await broker.publish("x", "q", timer_id=7)  # wrong: arg-type
    await broker.publish("x", "q", timer_id="t", on_conflict="ignore")  # wrong: arg-type
    await broker.publish_batch("x", "y", "q")  # wrong: call-arg
    await broker.publish_batch("x", queue="q", timer_id="t")  # wrong: call-arg
    stored: int = await broker.publish("x", "q")  # wrong: assignment
    await broker.cancel_timer("q")  # wrong: call-arg
    await broker.redrive("q", older=timedelta(days=1))  # wrong: call-arg
    print(stored)


async def handle(body: str, msg: OutboxMessage) -> None:
    await msg.nack("soon")  # wrong: arg-type
    await msg.nack(dellay=5)  # wrong: call-arg
    await msg.reject(reason=5)  # wrong: arg-type
    print(msg.attempts)  # wrong: attr-defined


async def look() -> None:
    await broker.publisher("q").assert_called_once_with("x", timerid="t")  # wrong: call-arg
    await broker.subscriber("q")(handle).assert_any_call("x", delay=5)  # wrong: call-arg


async def forgetful(delivery: Delivery) -> str:
    return "done"


Worker(open_store("memory://"), forgetful, queues=["q"])  # wrong: arg-type
Worker(open_store("memory://"), print, queues="q")  # wrong: arg-type
