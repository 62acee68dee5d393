"""A reminder for every invoice: set, listed, moved, fired, re-armed and cancelled. The url may be any store's."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from nightmail import OutboxBroker, StoreUnavailable
from nightmail.annotations import OutboxMessage

URL = sys.argv[1] if len(sys.argv) > 1 else "redis://localhost:6379"
# A name that nothing else uses: at the end everything that waits in this queue is cancelled.
QUEUE = "examples.invoice-reminders"
MONTH = timedelta(days=30)
# Three reminders within two seconds; in production this would be a week.
SOON = timedelta(seconds=0.5)
LAST = 3
PATIENCE_SECONDS = 20.0

broker = OutboxBroker(URL, create_tables=True, logger=None)
reminded: asyncio.Queue[str] = asyncio.Queue()


@broker.subscriber(QUEUE)
async def remind(invoice: int, number: int, msg: OutboxMessage) -> None:
    """Remind, and re-arm until the last time."""
    late = datetime.now(UTC) - msg.due_at
    if number < LAST:
        # Its own timer id, inside its own handler: the next reminder takes it over. Nothing here can delete that one:
        # if this handler failed after this line, its retry and the next reminder would both be kept.
        await broker.publish(
            {"invoice": invoice, "number": number + 1}, QUEUE, timer_id=name(invoice), activate_in=SOON
        )
    reminded.put_nowait(
        f"reminder {number} for invoice {invoice}, {late.total_seconds() * 1000:.1f} ms after its moment"
    )


def name(invoice: int) -> str:
    """The timer id: code that knows the invoice can move or cancel its reminder."""
    return f"invoice-{invoice}"


def say(text: object) -> None:
    """One line of the story."""
    print(f"  {text}", flush=True)


async def main() -> None:
    """The life of a few reminders, told as it happens."""
    print(f"Invoice reminders, on {URL.partition('://')[0]} alone:", flush=True)
    await broker.cancel_all(QUEUE)  # what an interrupted run may have left

    for invoice in (7, 8, 9, 10):
        await broker.publish(
            {"invoice": invoice, "number": 1}, QUEUE, timer_id=name(invoice), activate_in=MONTH
        )
    say("invoices 7, 8, 9 and 10 will be reminded of in 30 days")
    again = await broker.publish({"invoice": 7, "number": 1}, QUEUE, timer_id=name(7), activate_in=MONTH)
    say(f"invoice 7 once more: {again} (None: the first is kept)")

    await broker.reschedule_timer(QUEUE, name(10), activate_in=2 * MONTH)
    due = await broker.pending(QUEUE, due_before=datetime.now(UTC) + MONTH + timedelta(days=1))
    say(
        f"invoice 10 is put off for another 30 days; due within 31: {', '.join(str(one.timer_id) for one in due)}"
    )

    await broker.publish(
        {"invoice": 7, "number": 1}, QUEUE, timer_id=name(7), activate_in=SOON, on_conflict="replace"
    )
    say(f"invoice 7 is replaced by one due in {SOON.total_seconds():g} s, which re-arms itself:")
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(LAST):
            say(await reminded.get())

    say(f"invoice 8 was paid: cancelled? {await broker.cancel_timer(QUEUE, name(8))}")
    say(f"and cancelled again? {await broker.cancel_timer(QUEUE, name(8))}")
    say(f"all others are cancelled: {await broker.cancel_all(QUEUE)}")
    say(f"left in the queue: {len(await broker.pending(QUEUE))}")


async def run() -> None:
    """Connect, start the handler, tell the story, disconnect."""
    async with broker:
        await broker.start()
        await main()


if __name__ == "__main__":
    try:
        asyncio.run(run())
    except StoreUnavailable as error:
        sys.exit(f"{error}; or try: python -m examples.reminders sqlite:///reminders.db")
