"""The MySQL store on a Galera cluster, its workers spread over the nodes.

Every node takes writes, and locks are known only where they were taken: two nodes may give out the same message, and
the second to commit is refused. Before that no caller may have been told of a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import pytest_asyncio
from asyncmy.errors import MySQLError

from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.limits import MAX_BODY_BYTES
from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, Done, WriteResult
from nightmail.records import DeadFilter, QueueStats
from nightmail.store import FullStore, Settlement
from nightmail.stores.mysql import MySQLStore
from nightmail.testing.conformance import Harness, StoreConformance
from nightmail.testing.conformance.fixtures import StoreFixtures
from testkit.cluster_fixtures import Ledger, LedgerObserver
from testkit.servers.galera import Galera
from tests.stores.mysql.support import DriverHarness, open_store, run

pytestmark = [pytest.mark.mysql, pytest.mark.slow]
pytest_plugins = ["testkit.cluster_fixtures"]

QUEUE: Final = "orders"
MESSAGES: Final = 600
HANDLERS: Final = 8
LEASE: Final = timedelta(seconds=6)
PATIENCE: Final = 50.0
DEADLOCK: Final = 1213
ROUNDS: Final = 200
"""Of a race. What goes wrong there does so once in some hundred."""
SYNCED: Final = "set statement wsrep_sync_wait = 1 for select 1"
"""Answered once the node has applied what others have committed."""
EVERYTHING: Final = DeadFilter()
LARGE: Final = 100_000
"""Rows that take another node much longer to apply than one verb takes."""


@pytest.fixture(scope="module")
def database(galera: Galera) -> Iterator[list[str]]:
    """One for all tests here: its URL on each node."""
    galera.revive()
    with galera.fresh_database() as urls:
        yield urls
        galera.revive()


@asynccontextmanager
async def at_work(urls: list[str], ledger: Ledger) -> AsyncIterator[list[tuple[MySQLStore, LedgerObserver]]]:
    """A worker on each node; stopped at the end."""

    async def handle(delivery: Delivery) -> None:
        # A few outlast their first lease, so that leases are renewed while a node is lost.
        await asyncio.sleep(8 if delivery.body.endswith(b"00") else 0.02)
        ledger.ran(delivery)

    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(url)) for url in urls]
        observers = [ledger.observer() for _ in stores]
        workers = [
            Worker(
                ledger.watched(store),
                handle,
                queues=[QUEUE],
                settings=WorkerSettings(lease=LEASE, max_workers=HANDLERS),
                observer=observer,
            )
            for store, observer in zip(stores, observers, strict=True)
        ]
        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(worker.run()) for worker in workers]
            try:
                yield list(zip(stores, observers, strict=True))
                await asyncio.gather(*(worker.stop() for worker in workers))
            finally:
                for task in tasks:
                    task.cancel()


async def published(store: FullStore) -> list[bytes]:
    bodies = [b"%04d" % number for number in range(MESSAGES)]
    for first in range(0, MESSAGES, 100):
        await store.publish_batch([Message(queue=QUEUE, body=body) for body in bodies[first : first + 100]])
    return bodies


async def until_nothing_is_left(store: FullStore) -> None:
    """Neither waiting, nor running, nor dead."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if (await store.stats()).get(QUEUE, QueueStats()) == QueueStats():
                return
            await asyncio.sleep(0.1)


class GaleraHarness(DriverHarness):
    """Each store is on another node than the one before it; callers are where the first one is."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__(urls[0])
        self._urls = urls
        self._opened = 0

    async def open(self, *, keep_delivered: bool = False, max_body_bytes: int = MAX_BODY_BYTES) -> MySQLStore:
        url = self._urls[self._opened % len(self._urls)]
        store = MySQLStore(
            url, clock=self.clock, keep_delivered=keep_delivered, max_body_bytes=max_body_bytes
        )
        self._opened += 1
        await store.open()
        # The tables, and that they were emptied, has arrived here as well.
        await run(url, SYNCED)
        return store

    @asynccontextmanager
    async def transaction(self, *, repeatable_read: bool = False) -> AsyncIterator[Any]:
        # A node that has not applied yet what another one committed ends the transaction with 1213 instead: a caller
        # that wants to know of a lost lease before that waits for its node first.
        await run(self.url, SYNCED)
        async with super().transaction(repeatable_read=repeatable_read) as own:
            yield own

    async def make_empty(self) -> None:
        await super().make_empty()
        self._opened = 0


LOCKS: Final = (
    "test_while_an_ack_is_open_the_message_is_not_taken_over",
    "test_once_an_ack_is_rolled_back_an_expired_message_is_taken_over",
    "test_while_a_message_is_held_it_is_not_taken_over_and_no_worker_waits_for_it",
    "test_a_claim_passes_over_what_an_open_transaction_has_locked",
    "test_a_letter_that_an_open_transaction_has_locked_is_busy_and_holds_up_no_other",
)
"""What a caller's open transaction has locked is seen only on its own node. Elsewhere the first to commit wins."""


@pytest.mark.compat
class TestGalera(StoreConformance):
    """The contract, though every process is on another node."""

    @pytest_asyncio.fixture
    async def harness(self, database: list[str]) -> Harness:  # type: ignore[override]
        harness = GaleraHarness(database)
        await harness.make_empty()
        return harness


class TestGaleraLocks(StoreFixtures):
    """The part of the contract about what an open transaction has locked, among processes on one node."""

    @pytest_asyncio.fixture
    async def harness(self, database: list[str]) -> Harness:  # type: ignore[override]
        harness = GaleraHarness(database[:1])
        await harness.make_empty()
        return harness


for _name in LOCKS:
    setattr(TestGalera, _name, None)
    setattr(TestGaleraLocks, _name, getattr(StoreConformance, _name))


async def test_a_message_taken_over_on_another_node_takes_the_open_ack_with_it(
    galera: Galera, database: list[str]
) -> None:
    galera.revive()
    harness = GaleraHarness(database)
    await harness.make_empty()
    here, elsewhere = await harness.open(), await harness.open()
    try:
        await here.publish(Message(queue=QUEUE, body=b"once"))
        [late] = (await here.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries

        with pytest.raises(MySQLError) as refused:
            async with harness.transaction() as transaction:
                await harness.write(transaction, "too late")
                await here.ack([late], transaction=transaction)
                harness.clock.advance(LEASE)
                [taken] = (await elsewhere.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries

        # The first to commit wins, and the other's own writes are undone as well: the effect is there once.
        assert refused.value.args[0] == DEADLOCK
        assert await harness.written() == []
        assert taken.body == b"once"
        assert await elsewhere.settle([Settlement(taken, Done())]) == [WriteResult.WRITTEN]
    finally:
        await here.close()
        await elsewhere.close()


@pytest.fixture
async def behind(galera: Galera, database: list[str]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Leaves the other nodes behind the first one: for a while they are busy with a large transaction of its."""
    name = urlsplit(database[0]).path.removeprefix("/")
    first, *others = galera.nodes

    def make_table() -> None:
        first.sql(f"create table `{name}`.large (n int primary key, filling char(200) not null)")

    def fall_behind() -> None:
        first.sql(f"insert into `{name}`.large select seq, repeat('x', 200) from seq_1_to_{LARGE}")

    def catch_up() -> None:
        first.sql(f"drop table `{name}`.large")
        for node in others:
            node.sql("set statement wsrep_sync_wait = 1 for select 1")

    await asyncio.to_thread(make_table)
    yield lambda: asyncio.to_thread(fall_behind)
    await asyncio.to_thread(catch_up)


async def test_a_name_that_was_freed_on_one_node_can_be_taken_on_another_at_once(
    galera: Galera, database: list[str], behind: Callable[[], Awaitable[None]]
) -> None:
    async with open_store(database[0]) as here, open_store(database[1]) as elsewhere:
        timer = Message(queue="names", body=b"", due=timedelta(hours=1), timer_id="reminder")
        await here.publish(timer)
        assert await elsewhere.publish(timer) is None
        await behind()

        assert await here.cancel("names", "reminder")

        assert await elsewhere.publish(timer) is not None


async def test_a_timer_that_was_published_on_one_node_can_be_cancelled_on_another_at_once(
    galera: Galera, database: list[str], behind: Callable[[], Awaitable[None]]
) -> None:
    async with open_store(database[0]) as here, open_store(database[1]) as elsewhere:
        await elsewhere.ping()
        assert not await elsewhere.cancel("names", "alarm")
        await behind()

        await here.publish(Message(queue="names", body=b"", due=timedelta(hours=1), timer_id="alarm"))

        assert await elsewhere.cancel("names", "alarm")


# ------------------------------------------------------------------- several nodes want the same rows


@pytest.fixture
async def nodes(galera: Galera, database: list[str]) -> AsyncIterator[list[MySQLStore]]:
    """A store on each node, and nothing in them."""
    galera.revive()
    await GaleraHarness(database).make_empty()
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_store(url)) for url in database]


async def taken(store: FullStore, *, lease: timedelta = LEASE) -> list[Delivery]:
    return list((await store.claim([QUEUE], limit=3, lease=lease, token=uuid4())).deliveries)


async def taken_dead(store: FullStore) -> list[Delivery]:
    return list((await store.claim_dead([QUEUE], limit=2, lease=LEASE, token=uuid4())).deliveries)


async def test_messages_that_three_nodes_claim_at_once_go_to_one_of_them_each(
    nodes: list[MySQLStore],
) -> None:
    for _ in range(ROUNDS):
        ids = await nodes[0].publish_batch([Message(queue=QUEUE, body=b"") for _ in range(3)])

        claims = await asyncio.gather(*map(taken, nodes))

        deliveries = [*(each for claim in claims for each in claim), *await taken(nodes[0])]
        assert sorted(delivery.id for delivery in deliveries) == ids
        assert [delivery.deliveries for delivery in deliveries] == [1, 1, 1]
        results = await nodes[0].settle([Settlement(delivery, Done()) for delivery in deliveries])
        assert results == [WriteResult.WRITTEN] * 3
    assert sum(store.retried[DEADLOCK] for store in nodes) > 0


async def test_of_three_nodes_that_probe_a_paused_queue_at_once_one_takes_the_probe(
    nodes: list[MySQLStore], database: list[str]
) -> None:
    for _ in range(ROUNDS // 4):
        ids = await nodes[0].publish_batch([Message(queue=QUEUE, body=b"") for _ in range(3)])
        await nodes[0].pause(QUEUE, by="worker", until=timedelta(hours=1), automatic=True)
        await run(database[0], "update nightmail_controls set until = utc_timestamp(6) - interval 1 second")

        claims = await asyncio.gather(*map(taken, nodes))

        assert [delivery.id for claim in claims for delivery in claim] == ids[:1]
        assert await nodes[1].resume(QUEUE, automatic=True)
        deliveries = [*(each for claim in claims for each in claim), *await taken(nodes[2])]
        assert sorted(delivery.id for delivery in deliveries) == ids
        results = await nodes[0].settle([Settlement(delivery, Done()) for delivery in deliveries])
        assert results == [WriteResult.WRITTEN] * 3


async def test_a_message_that_is_settled_here_and_taken_over_there_has_one_end(
    nodes: list[MySQLStore],
) -> None:
    here, there, elsewhere = nodes
    for _ in range(ROUNDS):
        await here.publish_batch([Message(queue=QUEUE, body=b"") for _ in range(3)])
        late = await taken(here, lease=timedelta(0))
        first, *others = late
        ends = [Settlement(first, Done()), *(Settlement(each, Dead("rejected")) for each in others)]

        results, taken_over = await asyncio.gather(here.settle(ends), taken(there))

        held = [each.id for each, result in zip(late, results, strict=True) if result is WriteResult.WRITTEN]
        assert sorted([*held, *(each.id for each in taken_over)]) == [each.id for each in late]
        letters = [letter.message_id for letter in await elsewhere.dead(EVERYTHING)]
        assert sorted(letters) == [each.id for each in others if each.id in held]
        results = await there.settle([Settlement(each, Done()) for each in taken_over])
        assert results == [WriteResult.WRITTEN] * len(taken_over)
        await here.purge(EVERYTHING, limit=3)


async def test_letters_that_two_nodes_redrive_and_a_third_claims_go_one_way_each(
    nodes: list[MySQLStore],
) -> None:
    here, there, elsewhere = nodes
    for _ in range(ROUNDS // 2):
        await here.publish_batch([Message(queue=QUEUE, body=body) for body in (b"1", b"2", b"3")])
        await here.settle([Settlement(each, Dead("rejected")) for each in await taken(here)])
        letters = await here.dead(EVERYTHING)

        moved, also_moved, held = await asyncio.gather(
            here.redrive(letters), there.redrive(letters[::-1]), taken_dead(elsewhere)
        )

        alive, dead = await here.peek(QUEUE), await here.dead(EVERYTHING)
        assert sorted(each.id for each in alive) == sorted(moved + also_moved)
        bodies = [*(each.body for each in alive), *(each.body for each in dead)]
        assert sorted(bodies) == [b"1", b"2", b"3"]
        results = await elsewhere.settle([Settlement(each, Done()) for each in held])
        assert results == [WriteResult.WRITTEN] * len(held)
        await here.cancel_all(QUEUE)
        await here.purge(EVERYTHING, limit=3)


async def test_workers_on_three_nodes_lose_one_of_them_and_no_message(
    galera: Galera, database: list[str]
) -> None:
    galera.revive()
    ledger = Ledger(LEASE)
    async with open_store(database[0]) as store:
        bodies = await published(store)
        async with at_work(database, ledger) as workers:
            await ledger.until(lambda: len(ledger.runs) >= MESSAGES // 3, within=PATIENCE)
            outages = [observer.outages for _, observer in workers]
            assert outages == [[], [], []]

            await asyncio.to_thread(galera.kill, 2)
            in_hand = {each.body for each in workers[2][1].claims if not ledger.done[each.id]}

            # Two nodes take over what the third one had, once its leases have ended.
            await ledger.until(lambda: set(ledger.runs) == set(bodies), within=PATIENCE)
            await asyncio.to_thread(galera.restart, 2)
            await until_nothing_is_left(store)

        assert set(ledger.runs) == set(bodies)
        assert ledger.overlaps() == []
        assert [message for message, count in ledger.done.items() if count > 1] == []
        # Only what the lost node's worker had in hand, or was being told about, was handled a second time.
        assert ledger.ran_again() <= in_hand | ledger.unsettled()
        # They met in the same rows, were refused at the commit, asked again, and kept count.
        assert sum(store.retried[DEADLOCK] for store, _ in workers) > 0
