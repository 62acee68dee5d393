"""The accounts that docs/stores.md shows are enough for what they are meant for, and for nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from redis.exceptions import NoPermissionError

from nightmail.errors import NightmailError
from nightmail.operations.status import Looks
from nightmail.outcome import Dead, Done, Outcome, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, message
from nightmail.testing.conformance.workers import a_report
from tests.stores.documented_rights import ROLES
from tests.stores.redis.support import account, client, open_store, transaction
from tests.stores.support import until

pytestmark = pytest.mark.redis


async def publish_everything(store: RedisStore) -> None:
    assert await store.publish(message(b"plain")) is not None
    assert await store.publish(message(b"timer", timer_id="t", ordering_key="k")) is not None
    assert await store.publish(message(b"later", ordering_key="k", due=HOUR)) is not None
    assert await store.publish(message(b"timer", timer_id="t", on_conflict="replace"))
    assert await store.publish(message(b"dedup", timer_id="d", dedup_for=HOUR))
    assert await store.cancel(QUEUE, "t")
    assert len(await store.publish_batch([message(), message(priority=9)])) == 2


async def work(store: RedisStore, own: Any) -> None:
    with store.listen([QUEUE]):
        await until(lambda: store.listening)
    await store.publish_batch([message(b"%d" % number, ordering_key=str(number)) for number in range(6)])
    assert await store.look_ahead([QUEUE]) == {QUEUE: timedelta(0)}
    found = list((await store.claim([QUEUE], limit=6, lease=LEASE, token=uuid4())).deliveries)
    assert await store.extend(found, HOUR) == [WriteResult.WRITTEN] * 6
    outcomes: list[Outcome] = [Done(), Retry(), Release(), Dead("a"), Dead("b")]
    batch = [Settlement(each, outcome) for each, outcome in zip(found, outcomes, strict=False)]
    assert await store.settle(batch) == [WriteResult.WRITTEN] * 5
    async with transaction(store, [found[5]], own) as pipe:
        pipe.set(store.tag(QUEUE) + ":theirs", "written")
    letters = await store.claim_dead([QUEUE], limit=2, lease=LEASE, token=uuid4())
    assert await store.settle([Settlement(each, Done()) for each in letters.deliveries[:1]]) == [
        WriteResult.WRITTEN
    ]
    assert await store.recall_dead([QUEUE], letters.deliveries[1].token) == 1
    await store.report(a_report())
    assert await Looks(store).look()
    await store.pause(QUEUE, by="breaker", until=HOUR, automatic=True)
    assert await store.resume(QUEUE, automatic=True)
    await store.sign_off(a_report().id)


async def operate(store: RedisStore) -> None:
    (running,) = (await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries
    assert await store.request_stop(running.id, by="ann")
    assert [each.id for each in await store.leases()] == [running.id]
    assert (await store.facts(running.id)).stop_requested_by == "ann"
    assert await store.settle([Settlement(running, Release())]) == [WriteResult.WRITTEN]
    (letter,) = await store.dead(DeadFilter(), limit=1)
    assert (await store.facts(letter.message_id)).letter is not None
    await store.pause(QUEUE, by="ann")
    assert len(await store.pauses()) == 1
    assert await store.resume(QUEUE)
    assert await store.workers() == []
    assert await store.dead(DeadFilter())
    assert await store.peek()
    assert await store.stats()
    assert await store.redrive(await store.dead(DeadFilter()))
    assert await store.purge(DeadFilter(), limit=10) == 0
    await store.sweep(older_than=HOUR, limit=10)
    assert await store.cancel_all(QUEUE)


@pytest.mark.parametrize("name", ROLES)
async def test_an_account_as_documented_can_do_what_it_is_for(
    redis_url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with account(redis_url, name) as url, open_store(url) as store:
        await store.check()
        await publish_everything(store)
        if name != "publisher":
            async with client(url) as own:
                await work(store, own)
        if name == "operator":
            await operate(store)
    assert caplog.text == ""


@pytest.mark.parametrize("name", ROLES)
async def test_an_account_as_documented_can_do_nothing_else(redis_url: str, name: str) -> None:
    async with account(redis_url, name) as url, client(url) as own:
        for command in (
            ["GET", "theirs"],
            ["SET", "theirs", "x"],
            ["KEYS", "*"],
            ["FLUSHDB"],
            ["CONFIG", "SET", "maxmemory", "1"],
            ["ACL", "LIST"],
            ["CLIENT", "KILL", "TYPE", "normal"],
            ["SCRIPT", "FLUSH"],
            ["PUBLISH", "theirs", "x"],
            ["DEBUG", "SLEEP", "0"],
        ):
            with pytest.raises(NoPermissionError):
                await own.execute_command(*command)


async def test_an_account_for_one_queue_cannot_touch_another(redis_url: str) -> None:
    rules = ["resetkeys", "resetchannels", "~{nightmail}*", "~{nightmail:orders}*", "&{nightmail:orders}*"]
    async with open_store(redis_url) as whole:
        await whole.publish(message(b"theirs", queue="other"))
        async with account(redis_url, "worker", also=rules) as url, open_store(url) as store:
            await publish_everything(store)
            with pytest.raises(NightmailError):
                await store.publish(message(queue="other"))
            with pytest.raises(NightmailError):
                await store.claim(["other"], limit=1, lease=LEASE, token=uuid4())
        assert [pending.body for pending in await whole.peek("other")] == [b"theirs"]
