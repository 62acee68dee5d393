"""A publisher: publishes messages of every kind, and writes down what it was told."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Final

from faults.clock import ahead
from faults.journal import CANCELLED, Journal, What
from faults.workload.breakages import break_publisher
from faults.workload.config import BATCH, BULK_QUEUE, TRANSACTIONAL, Kind, PublisherConfig
from faults.workload.database import Database, RolledBack
from faults.workload.process import begin
from nightmail import OutboxBroker, PublishUncertain, open_store
from nightmail.errors import StoreUnavailable

AGAIN_SECONDS: Final = 0.1
TRIES: Final = 200
"""How often a message with a timer id is published again at most, while its publisher is told nothing certain."""
DEDUP: Final = timedelta(hours=1)
CANCELLED_WITHIN: Final = 0.02
"""Of those publishes that are cancelled, how long they take at most."""
UNDONE: Final = 0.05
"""How many of the batches are rolled back."""
LINES: Final = 3
"""How many ordering keys each publisher has."""


class Publisher:
    """Publishes one message after another."""

    def __init__(
        self, config: PublisherConfig, journal: Journal, broker: OutboxBroker, database: Database
    ) -> None:
        self._config = config
        self._journal = journal
        self._broker = broker
        self._database = database
        self._random = random.Random(f"{config.seed} {config.name}")
        self._numbers = iter(range(config.count))
        self._enough = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._enough.set)

    async def run(self) -> None:
        """Publish until it is enough, or asked to end."""
        config = self._config
        publishing = self._in_batches if config.bulk else self._one_by_one
        async with asyncio.TaskGroup() as group:
            for _ in range(config.at_once):
                group.create_task(publishing())

    async def _one_by_one(self) -> None:
        config = self._config
        for number in self._numbers:
            if self._enough.is_set():
                return
            is_poison = number < config.poison
            kind = "plain" if is_poison else self._random.choice(config.kinds)
            await self._publish(f"{config.name}/{number}", kind, poison=is_poison)
            await asyncio.sleep(self._random.uniform(0, 2) * config.pause)

    async def _in_batches(self) -> None:
        while not self._enough.is_set():
            keys = [f"{self._config.name}/{number}" for number in islice(self._numbers, BATCH)]
            if not keys:
                return
            begun = time.monotonic()
            await self._batch(keys)
            # Not the longer for how long it took: a slow store gets as many as it can take.
            await asyncio.sleep(max(BATCH / self._config.bulk - (time.monotonic() - begun), 0.0))

    async def _batch(self, keys: Sequence[str]) -> None:
        """All of these or none."""
        delay = self._random.choice((0.0, 0.0, self._random.uniform(0.1, 2.0)))
        undo = self._random.random() < UNDONE
        self._journal.write_all(
            "intended", ({"key": key, "queue": BULK_QUEUE, "delay": delay} for key in keys)
        )
        options: dict[str, Any] = {"activate_in": delay} if delay else {}
        bodies = [{"key": key} for key in keys]
        is_sent = False
        try:
            async with asyncio.timeout(self._patience()) as patience:
                if undo:
                    async with self._database.transaction() as session:
                        await self._broker.publish_batch(
                            *bodies, queue=BULK_QUEUE, session=session, **options
                        )
                        raise RolledBack
                is_sent = True
                ids = await self._broker.publish_batch(*bodies, queue=BULK_QUEUE, **options)
        except RolledBack:
            self._journal.write_all("rolled_back", ({"key": key} for key in keys))
        except (PublishUncertain, TimeoutError):
            what: What = "uncertain" if is_sent else "rolled_back"
            how = CANCELLED if patience.expired() else None
            # It was one call: of its cancellation the first line tells.
            self._journal.write_all(
                what, ({"key": key, "how": how if key is keys[0] else None} for key in keys)
            )
            await asyncio.sleep(AGAIN_SECONDS)
        except StoreUnavailable:
            self._journal.write_all("refused", ({"key": key} for key in keys))
            await asyncio.sleep(AGAIN_SECONDS)
        except Exception:
            if is_sent:
                raise
            # The driver's own error, in a transaction that was not to be committed.
            self._journal.write_all("rolled_back", ({"key": key} for key in keys))
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            self._journal.write_all(
                "acknowledged", ({"key": key, "id": id_} for key, id_ in zip(keys, ids, strict=True))
            )

    async def _publish(self, key: str, kind: Kind, *, poison: bool) -> None:
        body: dict[str, Any] = {"key": key}
        options: dict[str, Any] = {}
        facts: dict[str, Any] = {}
        queue = {"timer": "timer", "ordered": "ordered", "thread": "thread", "session": TRANSACTIONAL}.get(
            kind, "plain"
        )
        match kind:
            case "failing":
                body["failing"] = True
            case "delayed":
                facts["delay"] = self._random.uniform(0.1, 2.0)
                options["activate_in"] = facts["delay"]
            case "timer":
                facts["timer"] = True
                options |= {"timer_id": key, "dedup_for": DEDUP}
            case "ordered":
                line = facts["ordering_key"] = f"{self._config.name}/line-{self._random.randrange(LINES)}"
                options["ordering_key"] = line
            case "session":
                facts["transactional"] = True
            case _:
                pass
        if poison:
            body["poison"] = facts["poison"] = True
        self._journal.write("intended", key=key, queue=queue, **facts)
        match kind:
            case "timer":
                await self._until_certain(key, body, queue, options)
            case "joined" | "undone":
                await self._in_transaction(key, body, queue, undo=kind == "undone")
            case _:
                await self._once(key, body, queue, options)

    async def _once(self, key: str, body: dict[str, Any], queue: str, options: dict[str, Any]) -> bool:
        """Whether it is certain now."""
        try:
            async with asyncio.timeout(self._patience()) as patience:
                id_ = await self._broker.publish(body, queue, **options)
        except (PublishUncertain, TimeoutError):
            self._journal.write("uncertain", key=key, how=CANCELLED if patience.expired() else None)
            if patience.expired():
                return False  # Nothing is wrong with the store: no need to wait.
        except StoreUnavailable:
            self._journal.write("refused", key=key)
        else:
            self._journal.write("acknowledged", key=key, id=id_)
            return True
        await asyncio.sleep(AGAIN_SECONDS)
        return False

    def _patience(self) -> float | None:
        """After how long this publish is cancelled, if it is."""
        if self._random.random() < self._config.cancels:
            return self._random.uniform(0.0, CANCELLED_WITHIN)
        return None

    async def _until_certain(
        self, key: str, body: dict[str, Any], queue: str, options: dict[str, Any]
    ) -> None:
        """A timer id makes it safe to publish again."""
        for _ in range(TRIES):
            if await self._once(key, body, queue, options):
                return

    async def _in_transaction(self, key: str, body: dict[str, Any], queue: str, *, undo: bool) -> None:
        is_sent = False
        try:
            async with asyncio.timeout(self._patience()) as patience, self._database.transaction() as session:
                await self._broker.publish(body, queue, session=session)
                if undo:
                    raise RolledBack
                is_sent = True
        except RolledBack:
            self._journal.write("rolled_back", key=key)
        except Exception:  # noqa: BLE001 - the driver's own error, whatever it is: nothing is known of a commit
            # Before the commit was sent nothing can have been stored.
            how = CANCELLED if patience.expired() else None
            self._journal.write("uncertain" if is_sent else "rolled_back", key=key, how=how)
            await asyncio.sleep(0.0 if how else AGAIN_SECONDS)
        else:
            self._journal.write("acknowledged", key=key)


async def publish(config: PublisherConfig, journal: Journal) -> None:
    """Publish until it is enough."""
    async with Database.at(config.url) as database:
        store = open_store(config.url)
        break_publisher(store, config.breakage)
        broker = OutboxBroker(store, logger=logging.getLogger("publisher"))
        while True:
            try:
                await broker.connect()
                break
            except StoreUnavailable:
                await asyncio.sleep(AGAIN_SECONDS)
        publisher = Publisher(config, journal, broker, database)
        journal.write("booted", ahead=ahead())
        await publisher.run()
        await broker.stop()
        await store.close()


def main(config: PublisherConfig) -> None:
    """The whole process."""
    journal = Journal(config.journal, config.name)
    begin(config, publish(config, journal), journal)
