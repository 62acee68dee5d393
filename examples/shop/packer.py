"""A worker that starts packing and never finishes: the demo runs it in a process of its own, and kills it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from examples.shop.shop import Shop


async def main(file: Path) -> None:
    """Take one parcel, say so, and hang."""
    shop = Shop(file)

    @shop.broker.subscriber("parcels")
    async def pack(order_id: int) -> None:
        print(order_id, flush=True)
        await asyncio.Event().wait()

    await shop.broker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
