"""`huge.py <file>`: claim beside a body of 80 MB. Prints what memory it took and what became of both."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import sys
from contextlib import closing
from datetime import timedelta
from uuid import uuid4

from nightmail.message import Message
from nightmail.stores.sqlite import SQLiteStore

UNIT = 1 if sys.platform == "darwin" else 1024


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


async def main(file: str) -> None:
    store = SQLiteStore(file)
    await store.open()
    await store.migrate()
    await store.publish_batch([Message(queue="orders", body=b"huge"), Message(queue="orders", body=b"small")])
    with closing(sqlite3.connect(file)) as connection, connection:
        # Written without ever being in memory.
        connection.execute("UPDATE nightmail_messages SET body = zeroblob(80000000) WHERE id = 1")
    before = memory()
    claimed = await store.claim(["orders"], limit=10, lease=timedelta(seconds=30), token=uuid4())
    grown = memory() - before
    with closing(sqlite3.connect(file)) as connection:
        ((reason,),) = connection.execute("SELECT reason FROM nightmail_dead WHERE length(body) = 80000000")
    await store.close()
    print(grown, len(claimed.deliveries), reason)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
