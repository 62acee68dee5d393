"""A process whose handler never ends, with everything at its default: to be killed.

    python -m tests.broker.unending URL

It says when the handler has begun.
"""

from __future__ import annotations

import asyncio
import sys

from nightmail import OutboxBroker


async def main(url: str) -> None:
    """Handle one message for ever."""
    broker = OutboxBroker(url, logger=None)

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        print("running", flush=True)
        await asyncio.Event().wait()

    await broker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
