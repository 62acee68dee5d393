"""The shop's day, told as it happens. Ends with 0 only if all of it happened."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from examples.shop.shop import LEASE_SECONDS, Shop
from nightmail.annotations import OutboxMessage

PATIENCE_SECONDS = 20.0


class Day:
    """What happened so far, and a way to wait for what should."""

    def __init__(self) -> None:
        self.confirmed: list[int] = []
        self.reminded: list[tuple[str, float]] = []
        self.reports: list[int] = []
        self.charges: list[int] = []
        self.packed: list[tuple[int, int]] = []

    async def until(self, what: str, happened: Sequence[object], count: int = 1) -> None:
        """Wait until `happened` has so many entries; give up loudly."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(happened) < count:
            if time.monotonic() > deadline:
                sys.exit(f"FAILED: {what} did not happen within {PATIENCE_SECONDS:g} seconds")
            await asyncio.sleep(0.005)


def say(text: str) -> None:
    """One line of the story."""
    print(f"  {text}", flush=True)


def expect(truth: object, what: str) -> None:
    """The story is only worth telling if it is true."""
    if not truth:
        sys.exit(f"FAILED: {what}")


def open_for_business(shop: Shop, day: Day) -> None:
    """The shop's handlers."""

    @shop.broker.subscriber("confirmations")
    async def confirm(order_id: int) -> None:
        day.confirmed.append(order_id)

    @shop.broker.subscriber("reminders")
    async def remind(what: str, msg: OutboxMessage) -> None:
        late = datetime.now(UTC) - msg.due_at
        day.reminded.append((what, late.total_seconds() * 1000))

    @shop.broker.subscriber("reports")
    async def report(day_number: int, msg: OutboxMessage) -> None:
        if day_number < 3:
            # The same timer id from inside its own handler: the next message takes it over.
            await shop.broker.publish(day_number + 1, "reports", timer_id="daily", activate_in=0.3)
        day.reports.append(day_number)

    @shop.broker.subscriber("charges")
    async def charge(order_id: int, msg: OutboxMessage) -> None:
        day.charges.append(msg.attempt)
        if msg.attempt < 3:
            raise ConnectionError("the bank did not answer")


async def morning(shop: Shop, day: Day) -> None:
    """Orders and their messages commit, or roll back, together."""
    order_id = await shop.buy("a kettle")
    await day.until("the confirmation", day.confirmed)
    expect(day.confirmed == [order_id], "the confirmation is for another order")
    say(f"order {order_id} and its message were committed together; the confirmation went out")

    try:
        await shop.buy("a yacht", fails=True)
    except RuntimeError as declined:
        expect(await shop.bought() == ["a kettle"], "a declined order was kept")
        expect(await shop.broker.pending("confirmations") == [], "a message outlived its transaction")
        say(f"the next order was rolled back ({declined}), and its message with it")
    else:
        sys.exit("FAILED: the declined order went through")


async def noon(shop: Shop, day: Day) -> None:
    """Timers: one fires, one is cancelled, one re-arms itself."""
    await shop.broker.publish(
        "water the plants", "reminders", activate_in=timedelta(seconds=1), timer_id="plants"
    )
    await shop.broker.publish(
        "call the plumber", "reminders", activate_in=timedelta(seconds=1), timer_id="plumber"
    )
    expect(await shop.broker.has_pending("reminders", "plants"), "the timer is not there")
    say("two timers are set for a second from now")
    expect(await shop.broker.cancel_timer("reminders", "plumber"), "the timer could not be cancelled")
    say("one of them is cancelled: the plumber came by himself")
    await day.until("the timer", day.reminded)
    ((what, late),) = day.reminded
    expect(what == "water the plants" and late >= 0, "the wrong timer fired, or too early")
    say(f"the other fired {late:.1f} ms after its moment: {what}")

    await shop.broker.publish(1, "reports", timer_id="daily")
    await day.until("three reports", day.reports, 3)
    expect(day.reports == [1, 2, 3], "the timer was not re-armed in order")
    say("a timer re-armed itself twice from its own handler: reports 1, 2 and 3 are written")


async def afternoon(shop: Shop, day: Day) -> None:
    """A handler that fails is tried again."""
    await shop.broker.publish(1, "charges")
    await day.until("the third attempt", day.charges, 3)
    expect(day.charges == [1, 2, 3], "the attempts are not 1, 2, 3")
    expect(await shop.broker.dead_letters() == [], "something was given up")
    say("the bank did not answer twice; the third attempt went through")


async def evening(shop: Shop, day: Day, file: Path) -> None:
    """A process dies in the middle of a handler, and another takes its message over."""
    await shop.broker.publish(1, "parcels")
    packer = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.shop.packer", str(file), stdout=asyncio.subprocess.PIPE
    )
    assert packer.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        taken = await packer.stdout.readline()
    expect(taken.strip() == b"1", "the packer did not start")
    packer.kill()
    await packer.wait()
    died = time.monotonic()
    say(f"process {packer.pid} was killed while it packed order 1")

    second = Shop(file)

    @second.broker.subscriber("parcels")
    async def pack(order_id: int, msg: OutboxMessage) -> None:
        day.packed.append((order_id, msg.deliveries))

    await second.broker.start()
    await day.until("the takeover", day.packed)
    expect(day.packed == [(1, 2)], "the parcel was not delivered a second time")
    seconds = time.monotonic() - died
    say(
        f"a second process took it over {seconds:.1f} s later (the lease was {LEASE_SECONDS:g} s), delivery 2"
    )
    await second.close()


async def main() -> None:
    """The whole day, on a file that is gone afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "shop.db"
        shop, day = Shop(file), Day()
        open_for_business(shop, day)
        print(f"A small shop, on one SQLite file ({file.name}):", flush=True)
        await shop.open()
        await shop.broker.start()
        await morning(shop, day)
        await noon(shop, day)
        await afternoon(shop, day)
        await evening(shop, day, file)
        stats = await shop.broker.stats()
        expect(
            all(queue.ready == queue.scheduled == queue.running == 0 for queue in stats.values()),
            "something is left",
        )
        await shop.close()
        print("Everything was delivered, and nothing is left in the store.", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
