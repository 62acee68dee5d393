"""A long line of one ordering key: claims do not walk over it, and no message in it is forgotten."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Release, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.mysql import MySQLStore
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, message
from tests.plans.test_mysql_plans import rows_touched
from tests.stores.mysql.support import connection, execute, open_store, run
from tests.stores.support import claim, done

pytestmark = pytest.mark.mysql

MANY = 30_000
LONG = 200_000
FILL = f"""
    insert into nightmail_messages (queue, priority, due_at, published_at, headers, body, ordering_key)
    select '{QUEUE}', 5, utc_timestamp(6) - interval 1 hour + interval seq microsecond, utc_timestamp(6), '{{}}',
           concat('follower ', seq), 'k'
    from seq_1_to_{MANY}
"""
COLUMNS = """
    select group_concat(column_name) from information_schema.columns
    where table_schema = database() and table_name = 'nightmail_messages' and column_name <> 'id'
      and extra not like '%GENERATED%'
"""
FORGOTTEN = """
    select ordering_key from nightmail_messages where ordering_key is not null group by queue, ordering_key
    having sum(parked) > 0 and sum(parked = 0 and head_key is null) = 0
"""


async def parked(url: str) -> int:
    return int((await run(url, "select count(*) from nightmail_messages where parked = 1"))[0][0])


async def drained(store: MySQLStore, *, limit: int = 10, most: int = 300) -> list[bytes]:
    """Claim and end everything that is due; what it said, in order."""
    bodies: list[bytes] = []
    for _ in range(most):
        claimed = await store.claim([QUEUE], limit=limit, lease=LEASE, token=uuid4())
        if not claimed.deliveries and not claimed.full:
            return bodies
        bodies += [delivery.body for delivery in claimed.deliveries]
        await done(store, list(claimed.deliveries))
    raise AssertionError(f"not drained after {most} claims")


@pytest.fixture
def small_crowds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers are parked as soon as there are two."""
    monkeypatch.setattr("nightmail.stores.mysql.lines.CROWD", 1)


async def copy_the_last_parked(url: str, count: int) -> None:
    """So many more messages that are parked behind the others, as claims park them.

    They are put there without the indexes, which are made again afterwards: that is several times as fast.
    """
    async with connection(url) as own:
        ((columns,),) = await execute(own, COLUMNS)
        # They differ in nothing but the id.
        (values,) = await execute(own, f"select distinct {columns} from nightmail_messages where parked = 1")
        ((_, before),) = await execute(own, "show create table nightmail_messages")
        lines = [line.strip().rstrip(",") for line in before.splitlines()]
        indexes = [line for line in lines if line.startswith(("KEY ", "UNIQUE KEY "))]
        drops = ", ".join(f"drop key {index.partition('KEY ')[2].split()[0]}" for index in indexes)
        await execute(own, f"alter table nightmail_messages {drops}")
        await execute(own, "set unique_checks = 0, foreign_key_checks = 0, check_constraint_checks = 0")
        places = ", ".join(["%s"] * len(values))
        fill = f"insert into nightmail_messages ({columns}) select {places} from seq_1_to_{count}"
        await execute(own, fill, values)
        adds = ", ".join(f"add {index}" for index in indexes)
        await execute(own, f"alter table nightmail_messages {adds}")
        ((_, after),) = await execute(own, "show create table nightmail_messages")
        assert after.partition("ENGINE")[0] == before.partition("ENGINE")[0]


async def test_what_a_claim_reads_follows_its_limit_and_not_the_line_behind_one_key(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await store.publish_batch([message(b"line", ordering_key="k", priority=5) for _ in range(20)])
        first = list((await store.claim([QUEUE], limit=10, lease=HOUR, token=uuid4())).deliveries)
        assert await parked(mysql_url) == 18
        await copy_the_last_parked(mysql_url, LONG)
        assert store._opening.now is not None
        lane = store._opening.now.claim_lane

        async def others() -> None:
            await store.publish_batch([message(b"other %d" % n, priority=5) for n in range(10)])

        async def claimed(limit: int = 20) -> tuple[list[Delivery], int]:
            before = await lane.run(rows_touched)
            found = await claim(store, limit=limit)
            return found, await lane.run(rows_touched) - before

        # The key is held, then free.
        await others()
        found, read = await claimed()
        assert [delivery.body for delivery in found] == [b"other %d" % n for n in range(10)]
        assert read < 300
        for _ in range(3):
            await done(store, [*first, *found])
            await others()
            found, read = await claimed()
            first = []
            assert [delivery.body for delivery in found] == [b"line", *(b"other %d" % n for n in range(10))]
            assert read < 300

        # What is published to the line now is walked over once, a portion at a time, and parked. After that it costs
        # nothing either.
        await run(mysql_url, FILL)
        await others()
        reads: list[int] = []
        bodies: list[bytes] = []
        for _ in range(20):
            found, read = await claimed(10)
            bodies += [delivery.body for delivery in found]
            reads.append(read)
        assert bodies == [b"other %d" % n for n in range(10)]
        assert max(reads) < 100_000
        assert reads[-1] < 300
        assert await parked(mysql_url) > LONG + MANY - 100


async def test_the_watch_does_not_walk_over_a_line_either(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await run(mysql_url, FILL)
        assert store._opening.now is not None
        tower = store._opening.now.listener
        with store.listen([QUEUE]):
            before = await tower._lane.run(rows_touched)
            await tower._look()
            assert await tower._lane.run(rows_touched) - before < 3000


async def test_a_line_keeps_its_order_while_it_is_parked(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        await store.publish_batch([message(b"%d" % n, ordering_key="k") for n in range(60)])
        assert len(await claim(store)) == 1
        await run(
            mysql_url, "update nightmail_messages set lease_until = utc_timestamp(6) where token is not null"
        )
        assert await parked(mysql_url) > 0

        assert await drained(other) == [b"%d" % n for n in range(60)]


async def test_a_parked_message_that_a_caller_has_locked_blocks_no_other_and_is_not_forgotten(
    mysql_url: str, small_crowds: None
) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        for n in range(6):
            await store.publish(message(b"%d" % n, ordering_key="k", timer_id=f"t{n}"))
        first = await claim(store)
        assert await parked(mysql_url) == 4

        # The next one is claimed while the one after it is locked; then that is as it was.
        await execute(own, "set session transaction isolation level read committed")
        await own.begin()
        assert await store.cancel(QUEUE, "t2", transaction=own)
        await done(store, first)
        second = await claim(store)
        assert [delivery.body for delivery in second] == [b"1"]
        await own.rollback()
        await done(store, second)

        assert await drained(store) == [b"2", b"3", b"4", b"5"]


async def test_a_line_whose_parked_messages_are_all_locked_waits_and_goes_on(
    mysql_url: str, small_crowds: None
) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        for n in range(3):
            await store.publish(message(b"%d" % n, ordering_key="k", timer_id=f"t{n}"))
        first = await claim(store)
        assert await parked(mysql_url) == 1

        await own.begin()
        assert await store.cancel(QUEUE, "t2", transaction=own)
        await done(store, first)
        taken = await claim(store)
        await own.rollback()
        await done(store, taken)

        assert [*(delivery.body for delivery in taken), *await drained(store)] == [b"1", b"2"]


async def cancel(store: MySQLStore, name: str, transaction: Any = None) -> None:
    await store.cancel(QUEUE, name, transaction=transaction)


async def reschedule(store: MySQLStore, name: str, transaction: Any = None) -> None:
    await store.reschedule(QUEUE, name, HOUR, transaction=transaction)


async def give_another_key(store: MySQLStore, name: str, transaction: Any = None) -> None:
    await store.publish(
        message(b"moved", timer_id=name, ordering_key="other", on_conflict="replace"), transaction=transaction
    )


async def replace_for_later(store: MySQLStore, name: str, transaction: Any = None) -> None:
    await store.publish(
        message(b"later", timer_id=name, ordering_key="k", on_conflict="replace", due=HOUR),
        transaction=transaction,
    )


@pytest.mark.parametrize("verb", [cancel, reschedule, give_another_key, replace_for_later])
@pytest.mark.parametrize("joined", [False, True])
async def test_a_message_that_leaves_a_line_lets_the_next_one_pass(
    mysql_url: str, small_crowds: None, verb: Any, joined: bool
) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        for n in range(4):
            await store.publish(message(b"%d" % n, ordering_key="k", timer_id=f"t{n}"))
        first = await claim(store)
        assert await parked(mysql_url) == 2

        if joined:
            await own.begin()
            await verb(store, "t1", own)
            await own.commit()
        else:
            await verb(store, "t1")
        assert await run(mysql_url, FORGOTTEN) == []
        await done(store, first)

        assert [body for body in await drained(store) if body != b"moved"] == [b"2", b"3"]


async def test_all_of_a_parked_line_is_cancelled(mysql_url: str, small_crowds: None) -> None:
    async with open_store(mysql_url) as store:
        await store.publish_batch([message(b"%d" % n, ordering_key="k") for n in range(50)])
        first = await claim(store)
        assert await parked(mysql_url) > 0

        assert await store.cancel_all(QUEUE) == 49

        await done(store, first)
        assert await store.stats() == {}


@pytest.mark.parametrize("seed", range(3))
async def test_no_message_in_a_line_is_forgotten_whatever_happens_to_it(
    mysql_url: str, small_crowds: None, seed: int
) -> None:
    chance = random.Random(seed)
    stored: set[int] = set()
    gone: Counter[int] = Counter()
    running: list[Delivery] = []
    async with open_store(mysql_url) as store, open_store(mysql_url) as other, connection(mysql_url) as own:

        async def publish() -> None:
            name = f"t{chance.randrange(12)}" if chance.random() < 0.5 else None
            conflict: Any = chance.choice(["skip", "replace"])
            options: Any = {"timer_id": name, "on_conflict": conflict} if name else {}
            due = timedelta(milliseconds=chance.choice([0, 0, 0, 20]))
            id_ = await store.publish(message(ordering_key=chance.choice("ab"), due=due, **options))
            if id_ is not None:
                stored.add(id_)

        async def take() -> None:
            taken = await claim(chance.choice([store, other]), limit=chance.choice([1, 3, 10]))
            running.extend(taken)
            assert len({each.ordering_key for each in running}) == len(running)

        async def end() -> None:
            chance.shuffle(running)
            outcomes: list[Outcome] = [Done(), Dead("rejected"), Retry(), Release()]
            outcome = chance.choice(outcomes)
            for delivery in running[:1]:
                assert await store.settle([Settlement(delivery, outcome)]) == [WriteResult.WRITTEN]
                running.remove(delivery)
                if isinstance(outcome, Done | Dead):
                    gone[delivery.id] += 1

        async def change() -> None:
            name = f"t{chance.randrange(12)}"
            timer_owner = await store.peek(QUEUE, timer_id=name)
            await own.begin()
            if chance.random() < 0.5:
                cancelled = await store.cancel(QUEUE, name, transaction=own)
            else:
                cancelled = False
                await store.reschedule(QUEUE, name, timedelta(0), transaction=own)
            if chance.random() < 0.3:
                await own.rollback()
            else:
                await own.commit()
                if cancelled:
                    gone[timer_owner[0].id] += 1

        for _ in range(150):
            await chance.choice([publish, publish, publish, take, end, change])()
            assert await run(mysql_url, FORGOTTEN) == []
        for delivery in running:
            assert await store.settle([Settlement(delivery, Done())]) == [WriteResult.WRITTEN]
            gone[delivery.id] += 1
        await asyncio.sleep(0.03)
        for _ in range(200):
            left = await claim(store, limit=10)
            if not left:
                break
            await done(store, left)
            gone.update(delivery.id for delivery in left)

        assert set(gone) == stored
        assert max(gone.values()) == 1
