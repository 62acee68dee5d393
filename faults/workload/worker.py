"""A worker: handles everything that publishers publish, and writes down each step."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from faults.clock import ahead
from faults.journal import CANCELLED, Journal
from faults.workload.breakages import break_product, break_worker
from faults.workload.config import BULK_QUEUE, TOGETHER, TRANSACTIONAL, WorkerConfig
from faults.workload.database import Database, RedisDatabase, SqlDatabase, write_effect
from faults.workload.forking import INHERITED, Inherited, refused_in_a_child
from faults.workload.process import begin
from faults.workload.recorded import lease_of, record
from nightmail import ConstantRetry, OutboxBroker, open_store
from nightmail.annotations import OutboxMessage, OutboxSession
from nightmail.errors import StoreUnavailable
from nightmail.store import FullStore

Body = dict[str, Any]

_KEEPS_THE_GIL: Final = ctypes.PyDLL(None)


class Failed(Exception):
    """What a handler raises on its first attempt, if it was told to."""


class Handlers:
    """The handlers of one process."""

    def __init__(self, config: WorkerConfig, journal: Journal, store: FullStore) -> None:
        self._config = config
        self._journal = journal
        self._store = store
        # Not seeded: how long a handler takes is decided by the machine anyway.
        self._random = random.Random()

    def seconds(self) -> float:
        """How long a handler takes this time."""
        if self._config.slow_seconds and self._random.random() < 0.1:
            return self._config.slow_seconds
        return self._random.uniform(0, 2) * self._config.handler_seconds

    def block(self) -> None:
        """Let nothing else run, in this event loop or in the whole process."""
        begun = time.monotonic()
        if self._config.blocks == "loop":
            time.sleep(self._config.block_seconds)
            # It is no excuse: leases are renewed by a thread of their own.
            self._journal.write(
                "fault", kind="loop blocked", target="an event loop", sent=begun, until=time.monotonic()
            )
            return
        _KEEPS_THE_GIL.usleep(int(self._config.block_seconds * 1_000_000))
        self._journal.write(
            "fault", kind="GIL kept", target=self._config.name, sent=begun, until=time.monotonic()
        )

    async def fork(self) -> None:
        """Fork a process that tries to use the store."""
        begun = time.monotonic()
        try:
            await refused_in_a_child(self._store, self._random.random())
        except Inherited:
            # Raised here it would only be a handler's failure, and tried again.
            logging.getLogger(__name__).exception("a child used the store")
            os._exit(INHERITED)
        # It hit the child alone: the parent has no excuse.
        self._journal.write("fault", kind="fork", target="a child", sent=begun, until=time.monotonic())

    @contextmanager
    def running(self, body: Body, msg: OutboxMessage) -> Iterator[None]:
        """Write down that a handler runs, and how it ended."""
        lease = lease_of(msg.delivery)
        self._journal.write("started", **lease, attempts=msg.attempt)
        how = CANCELLED
        try:
            if body.get("poison"):
                os.kill(os.getpid(), signal.SIGKILL)
            if body.get("failing") and msg.attempt == 1:
                raise Failed(body["key"])
            yield
            how = "ok"
        except Exception:
            how = "failed"
            raise
        finally:
            self._journal.write("ended", **lease, how=how)

    async def asynchronous(self, body: Body, msg: OutboxMessage) -> None:
        """What most queues have."""
        with self.running(body, msg):
            await asyncio.sleep(self.seconds())
            if self._config.block_seconds and self._random.random() < 0.1:
                self.block()
            if self._random.random() < self._config.forks:
                await self.fork()

    async def quick(self, body: Body, msg: OutboxMessage) -> None:
        """What the bulk of the messages have."""
        with self.running(body, msg):
            await asyncio.sleep(0)

    def blocking(self, body: Body, msg: OutboxMessage) -> None:
        """A `def` handler, in a thread."""
        with self.running(body, msg):
            time.sleep(self.seconds())

    async def in_session(self, body: Body, msg: OutboxMessage, session: OutboxSession) -> None:
        """Writes its effect in the transaction that ends its message."""
        with self.running(body, msg):
            await asyncio.sleep(self.seconds())
            # Last: on SQLite it takes the only write lock.
            await write_effect(session, body["key"])

    def in_pipeline(self, database: RedisDatabase) -> Any:
        """The same on Redis."""

        async def handle(body: Body, msg: OutboxMessage) -> None:
            with self.running(body, msg):
                async with msg.transaction(database.client) as pipeline:
                    pipeline.rpush(database.effects_key, body["key"])
                    await asyncio.sleep(self.seconds())

        return handle


async def work(config: WorkerConfig, journal: Journal) -> None:
    """Work until SIGTERM."""
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    async with Database.at(config.url) as database:
        break_product(config.breakage)
        store = open_store(config.url)
        break_worker(store, config.breakage)
        record(store, journal, lease=config.lease)
        broker = OutboxBroker(
            store,
            lease_ttl_seconds=config.lease,
            max_workers=config.max_workers,
            max_deliveries=config.max_deliveries,
            retry=ConstantRetry(delay=timedelta(seconds=0.2), max_attempts=config.max_attempts),
            graceful_timeout=config.grace,
            handler_timeout=timedelta(seconds=config.timeout or 3600.0),
            logger=logging.getLogger("worker"),
            session_factory=database.sessions if isinstance(database, SqlDatabase) else None,
        )
        handlers = Handlers(config, journal, store)
        broker.subscriber(*TOGETHER)(handlers.asynchronous)
        broker.subscriber("thread")(handlers.blocking)
        broker.subscriber(BULK_QUEUE, max_workers=config.bulk_workers)(handlers.quick)
        if isinstance(database, RedisDatabase):
            broker.subscriber(TRANSACTIONAL)(handlers.in_pipeline(database))
        else:
            broker.subscriber(TRANSACTIONAL)(handlers.in_session)
        if not await _started(broker, asked):
            return
        journal.write(
            "booted",
            lease=config.lease,
            grace=config.grace,
            max_deliveries=config.max_deliveries,
            max_attempts=config.max_attempts,
            timeout=config.timeout,
            ahead=ahead(),
        )
        await asked.wait()
        journal.write("stopping")
        await broker.stop()
        await store.close()
        journal.write("stopped")


async def _started(broker: OutboxBroker, asked: asyncio.Event) -> bool:
    """Start it, however often the store is out of reach; whether it was."""
    while not asked.is_set():
        try:
            await broker.start()
        except StoreUnavailable:
            await asyncio.sleep(0.2)
        else:
            return True
    return False


def main(config: WorkerConfig) -> None:
    """The whole process."""
    journal = Journal(config.journal, config.name)
    begin(config, work(config, journal), journal)
