"""Dead letters in Redis: what is left of them, what others did to their keys, and how much is asked at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError

from nightmail.errors import LeaseLost, SchemaDrift, StoreUnavailable
from nightmail.outcome import Dead, Done, Release, Retry, WriteResult
from nightmail.records import DeadFilter, DeadLetter, DeadSummary, Swept
from nightmail.store import Extend, Settlement
from nightmail.stores.redis import RedisStore
from nightmail.stores.redis.link import Link
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, MINUTE, QUEUE, SECOND, claim_letters, message
from tests.stores.redis.support import client, open_store
from tests.stores.support import bury, claim, done, until

pytestmark = pytest.mark.redis

TAG = "{nightmail:orders}"
EMPTY = {
    "{nightmail}:meta",
    "{nightmail}:queues",
    "{nightmail}:processes",
    f"{TAG}:last",
}


@contextmanager
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The scripts that are run while this lasts."""
    names: list[str] = []
    call = Link.call

    async def noted(link: Link, asked: Any, **options: Any) -> Any:
        names.append(asked.script.name)
        return await call(link, asked, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Link, "call", noted)
        yield names


# ------------------------------------------------------------------------------------ what is left


async def test_nothing_is_left_of_a_letter_that_is_gone(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        removers: list[Callable[[], Awaitable[object]]] = [
            lambda: store.purge(DeadFilter(), limit=10),
            lambda: store.sweep(older_than=timedelta(0), limit=10),
        ]
        for remove in removers:
            await bury(store, b"a", b"b", timer_id="t", ordering_key="k")
            given_up, _ = await claim_letters(store)
            await store.settle([Settlement(given_up, Dead("hopeless"))])
            clock.advance(LEASE + SECOND)
            assert [each.body for each in await claim_letters(store)] == [b"b"]
            clock.advance(LEASE + SECOND)
            await remove()
            assert {key.decode() for key in await own.keys("*")} == EMPTY

        await bury(store, b"a")
        await done(store, list(await claim_letters(store)))
        assert {key.decode() for key in await own.keys("*")} == EMPTY

        moved = await store.redrive(await bury(store, b"a", b"b"))
        assert len(moved) == 2
        await done(store, await claim(store))
        assert {key.decode() for key in await own.keys("*")} == EMPTY


async def test_every_key_of_letters_is_in_the_slot_of_their_queue(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await bury(store, b"a", b"b", queue="a}{b")
        await claim_letters(store, "a}{b", limit=1)

        keys = [key for key in await own.keys("*") if not key.startswith(b"{nightmail}:")]
        assert {key_slot(key) for key in keys} == {key_slot(store.tag("a}{b").encode())}


async def test_a_redriven_message_has_nothing_of_the_letter_in_its_hash(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        letters = await bury(store, b"a", timer_id="t", ordering_key="k", headers={"a": 1})
        await store.settle([Settlement((await claim_letters(store))[0], Retry())])
        (moved,) = await store.redrive(letters)

        assert set(await own.hgetall(f"{TAG}:m:{moved:016x}")) == {
            b"body",
            b"state",
            b"headers",
            b"timer",
            b"key",
        }


# ------------------------------------------------------------------------------------- lost replies


@contextmanager
def replies_lost(monkeypatch: pytest.MonkeyPatch, script: str) -> Iterator[None]:
    call = Link.call

    async def deaf(link: Link, asked: Any, **options: Any) -> Any:
        answers = await call(link, asked, **options)
        if asked.script.name == script:
            link.terminate()
            raise RedisConnectionError
        return answers

    with monkeypatch.context() as patch:
        patch.setattr(Link, "call", deaf)
        yield


async def test_a_claim_of_letters_whose_reply_was_lost_is_handed_back_and_takes_nothing_when_it_arrives_late(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(redis_url) as store:
        one, two = await bury(store, b"a", b"b")
        token = uuid4()
        with replies_lost(monkeypatch, "claim_dead"), pytest.raises(StoreUnavailable):
            await store.claim_dead([QUEUE], limit=1, lease=LEASE, token=token)

        assert await store.recall_dead([QUEUE], token) == 1
        late = await store.claim_dead([QUEUE], limit=1, lease=LEASE, token=token)

        assert not late.deliveries
        found = await claim_letters(store)
        assert [(each.id, each.deliveries) for each in found] == [(one.id, 1), (two.id, 1)]


async def test_a_redrive_whose_reply_was_lost_stores_nothing_twice(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(redis_url) as store:
        letters = await bury(store, b"a", b"b")
        with replies_lost(monkeypatch, "redrive"), pytest.raises(StoreUnavailable):
            await store.redrive(letters, to="other")

        assert await store.redrive(letters, to="other") == []
        assert [each.body for each in await store.peek("other")] == [b"a", b"b"]


# ------------------------------------------------------------------------------------- how much at once


async def test_any_number_of_letters_takes_one_call_for_each_verb(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(redis_url) as store:
        await store.publish_batch([message(queue=queue) for queue in (QUEUE, "other") for _ in range(60)])
        for queue in (QUEUE, "other"):
            deliveries = await claim(store, limit=60, queue=queue)
            await store.settle([Settlement(each, Dead("rejected")) for each in deliveries])
        letters = await store.dead(DeadFilter(), limit=1000)
        with calls(monkeypatch) as names:
            claimed = await store.claim_dead([QUEUE, "other"], limit=1000, lease=LEASE, token=uuid4())
            await store.extend(claimed.deliveries, LEASE)
            await store.settle([Settlement(each, Release()) for each in claimed.deliveries])
            moved = await store.redrive(letters, to="third")

        assert len(letters) == len(claimed.deliveries) == len(moved) == 120
        assert names == ["claim_dead", "extend_dead", "settle_dead", "enlist", "redrive"]
        assert moved == sorted(moved)


async def test_a_sweep_of_many_goes_in_parts_and_ends_at_its_limit(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.stores.redis.sweeping.AT_ONCE", 10)
    clock = ManualClock()
    async with open_store(redis_url, clock=clock, keep_delivered=True) as store:
        await store.publish_batch([message() for _ in range(60)])
        deliveries = await claim(store, limit=60)
        await done(store, deliveries[:35])
        await store.settle([Settlement(each, Dead("rejected")) for each in deliveries[35:]])
        held = await claim_letters(store, limit=3)
        for number in range(12):
            await store.publish(message(timer_id=str(number), dedup_for=MINUTE, queue="windows"))
        await store.cancel_all("nothing")
        assert await store.sweep(older_than=timedelta(0), limit=100) == Swept()

        clock.advance(SECOND)
        with calls(monkeypatch) as names:
            assert await store.sweep(older_than=timedelta(0), limit=20) == Swept(delivered=20, dead=20)
            assert await store.sweep(older_than=timedelta(0), limit=100) == Swept(delivered=15, dead=2)
        # Two in full and one that was short, and one for the other queue, each time.
        assert names == ["sweep"] * 6
        assert [letter.id for letter in await store.dead(DeadFilter())] == sorted(
            (each.id for each in held), reverse=True
        )
        # The windows end, and the messages that wait stay.
        clock.advance(HOUR)
        assert await store.sweep(older_than=timedelta(0), limit=100) == Swept(dead=3, dedup=12)
        assert len(await store.peek("windows")) == 12


# ---------------------------------------------------------------------------------------- under a lease


async def test_the_keeper_renews_letters_too(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await bury(store, b"a")
        (letter,) = await claim_letters(store)
        member = f"{letter.id:016x}"
        before = await own.zscore(f"{TAG}:dead:run", member)
        answers: list[WriteResult] = []

        async def renew(extend: Extend) -> None:
            answers.extend(await extend([letter], HOUR))

        async with store.run_on_keeper_thread(renew):
            await until(lambda: bool(answers))

        assert answers == [WriteResult.WRITTEN]
        assert await own.zscore(f"{TAG}:dead:run", member) > before + 3000 * 1e6


async def test_a_dead_letter_handler_publishes_under_its_lease(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        await bury(store, b"a", timer_id="t")
        (letter,) = await claim_letters(store)
        assert await store.publish(message(b"by hand"), own=letter) is not None
        async with own.pipeline() as pipe:
            await store.publish(message(b"in a pipeline"), own=letter, transaction=pipe)
            await pipe.execute()
        clock.advance(LEASE)
        await claim_letters(store)

        with pytest.raises(LeaseLost):
            await store.publish(message(b"too late"), own=letter)
        assert [each.body for each in await store.peek()] == [b"by hand", b"in a pipeline"]


async def test_a_letter_with_the_id_of_a_message_is_not_taken_for_it(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await bury(store, b"a")
        (letter,) = await claim_letters(store)
        first = await store.publish(message(b"first", timer_id="t", due=HOUR))
        # No store would give a letter this id, but nothing forbids it.
        await own.rename(f"{TAG}:d:{letter.id:016x}", f"{TAG}:d:{first:016x}")
        letter.id = first or 0

        assert await store.publish(message(b"second", timer_id="t"), own=letter) is None
        assert [each.body for each in await store.peek()] == [b"first"]


# --------------------------------------------------------------------------------- tampered with


async def gone(own: Any, key: str) -> None:
    await own.delete(key)


async def a_string(own: Any, key: str) -> None:
    await own.delete(key)
    await own.set(key, "not ours")


async def with_another_state(own: Any, key: str) -> None:
    await own.hset(key, "state", "not ours")


@pytest.mark.parametrize("tamper", [gone, a_string, with_another_state])
async def test_a_letter_that_was_tampered_with_does_not_hold_up_its_neighbours(
    redis_url: str, tamper: Callable[[Any, str], Awaitable[None]]
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        before, victim, after = await bury(store, b"before", b"victim", b"after")
        await tamper(own, f"{TAG}:d:{victim.id:016x}")

        assert [each.body for each in await claim_letters(store, limit=2)] == [b"before", b"after"]
        assert await store.redrive([before, victim, after]) == []
        assert await store.purge(DeadFilter(), limit=10) == 1
        assert (await store.stats())[QUEUE].dead == 2


@pytest.mark.parametrize("field", ["lease", "died", "message", "token", "moving", "error", "reason", "group"])
async def test_a_field_of_a_letter_that_was_tampered_with_fails_nothing(redis_url: str, field: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        (letter,) = await bury(store, b"a")
        for value in (b"inf", b"nan", b"\xff" * 24, b""):
            await own.hset(f"{TAG}:d:{letter.id:016x}", field, value)
            assert [each.body for each in await store.dead(DeadFilter())] == [b"a"]
            (held,) = await claim_letters(store)
            assert held.body == b"a"
            assert await store.settle([Settlement(held, Release())]) == [WriteResult.WRITTEN]
        assert len(await store.redrive([letter])) == 1


@pytest.mark.parametrize(
    "key", ["dead", "died", "dead:due", "dead:run", "dead:expired", "dead:groups", "dead:letters"]
)
async def test_a_foreign_thing_in_the_place_of_a_key_is_told_before_anything_is_written(
    redis_url: str, key: str
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        letters = await bury(store, b"a", b"b")
        (held,) = await claim_letters(store, limit=1)
        before = await own.hgetall(f"{TAG}:d:{letters[1].id:016x}")
        kept = await own.dump(f"{TAG}:{key}")
        await own.delete(f"{TAG}:{key}")
        await own.set(f"{TAG}:{key}", "not ours")
        verbs: list[Callable[[], Awaitable[object]]] = [
            lambda: claim_letters(store),
            lambda: store.settle([Settlement(held, Done())]),
            lambda: store.extend([held], LEASE),
            lambda: store.redrive(letters),
            lambda: store.sweep(older_than=timedelta(0), limit=10),
        ]
        for verb in verbs:
            with pytest.raises(SchemaDrift):
                await verb()

        await own.delete(f"{TAG}:{key}")
        if kept is not None:
            await own.restore(f"{TAG}:{key}", 0, kept)
        assert await own.hgetall(f"{TAG}:d:{letters[1].id:016x}") == before
        assert await store.settle([Settlement(held, Done())]) == [WriteResult.WRITTEN]
        assert len(await store.redrive(letters)) == 1


@pytest.mark.parametrize("key", ["due:3", "later", "lines", "run", "timers", "heads", "last", "windows"])
async def test_a_foreign_thing_in_the_place_of_a_key_is_told_before_a_sweep_deletes_anything(
    redis_url: str, key: str
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        (letter,) = await bury(store, b"a")
        await own.delete(f"{TAG}:{key}")
        await own.lpush(f"{TAG}:{key}", "not ours")

        with pytest.raises(SchemaDrift):
            await store.sweep(older_than=timedelta(0), limit=10)

        assert [each.id for each in await store.dead(DeadFilter())] == [letter.id]


# ------------------------------------------------------------------------------------ what letters have in common

ERRORS = (None, "host 1 is down\nTraceback", "host 2 is down", "no such customer", "")


async def some_of_each(store: RedisStore, clock: ManualClock, queue: str = QUEUE) -> list[DeadLetter]:
    """Two dead letters for each error and each of two reasons, a second apart; the newest first."""
    for reason in ("rejected", "failed"):
        for error in ERRORS * 2:
            await store.publish(message(queue=queue))
            (delivery,) = await claim(store, limit=1, queue=queue)
            await store.settle([Settlement(delivery, Dead(reason, error))])
            clock.advance(SECOND)
    return await store.dead(DeadFilter(queue=queue), limit=99)


async def read_one_by_one(store: RedisStore, **conditions: Any) -> DeadSummary:
    """The groups of all dead letters: with ids, each of them is read."""
    ids = [letter.id for letter in await store.dead(DeadFilter(), limit=99)]
    return await store.summarize_dead(DeadFilter(ids=tuple(ids), **conditions), limit=99)


@pytest.mark.parametrize(
    "conditions", [{}, {"reason": "failed"}, {"older_than": 5 * SECOND}, {"queue": QUEUE}], ids=str
)
async def test_the_groups_that_are_kept_are_those_of_the_letters_that_are_there(
    redis_url: str, conditions: dict[str, Any]
) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        letters = await some_of_each(store, clock)
        await some_of_each(store, clock, "other")
        # Some leave in each way that there is, others change and stay.
        await store.redrive(letters[:3])
        await store.purge(DeadFilter(ids=tuple(each.id for each in letters[3:6])), limit=9)
        one, two, three = await claim_letters(store, limit=3)
        await store.settle(
            [Settlement(one, Done()), Settlement(two, Retry()), Settlement(three, Dead("hopeless"))]
        )
        await store.sweep(older_than=33 * SECOND, limit=2)

        kept = await store.summarize_dead(DeadFilter(**conditions), limit=99)
        assert kept == await read_one_by_one(store, **conditions)
        assert len(kept.groups) > 3


async def test_groups_take_one_call_whatever_is_in_them(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(redis_url) as store:
        await store.publish_batch([message() for _ in range(1400)])
        died = [Settlement(each, Dead("failed", "no customer")) for each in await claim(store, limit=1400)]
        await store.settle(died)

        with calls(monkeypatch) as names:
            summary = await store.summarize_dead(DeadFilter(), limit=9)

        assert [group.count for group in summary.groups] == [1400]
        assert names == ["dead_groups"]


async def test_many_groups_come_in_portions_and_each_of_them_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(redis_url) as store:
        await store.publish_batch([message() for _ in range(1400)])
        letters = await claim(store, limit=1400)
        await store.settle(
            [Settlement(each, Dead(f"reason {place % 700}")) for place, each in enumerate(letters)]
        )

        with calls(monkeypatch) as names:
            summary = await store.summarize_dead(DeadFilter(), limit=9999)

        assert (summary.count, len(summary.groups)) == (1400, 700)
        assert {group.count for group in summary.groups} == {2}
        assert set(names) == {"dead_groups"}
        assert 3 < len(names) < 10


async def without_the_list(own: Any, group: str) -> None:
    await own.delete(f"{TAG}:dead:groups")


async def without_a_group(own: Any, group: str) -> None:
    await own.delete(group)


async def with_a_string_for_a_group(own: Any, group: str) -> None:
    await own.delete(group)
    await own.set(group, "not ours")


async def with_another_name(own: Any, group: str) -> None:
    await own.hset(f"{TAG}:dead:groups", group.removeprefix(f"{TAG}:dead:group:"), "not ours")


@pytest.mark.parametrize(
    "tamper", [without_the_list, without_a_group, with_a_string_for_a_group, with_another_name]
)
async def test_where_groups_were_tampered_with_the_letters_are_read(
    redis_url: str, tamper: Callable[[Any, str], Awaitable[None]]
) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        await some_of_each(store, clock)
        before = await store.summarize_dead(DeadFilter(), limit=99)
        group = f"{TAG}:dead:group:{(await own.hkeys(f'{TAG}:dead:groups'))[0].decode()}"
        await tamper(own, group)

        assert await store.summarize_dead(DeadFilter(), limit=99) == before
        # Others come, and all go.
        await bury(store, b"a")
        assert await store.purge(DeadFilter(), limit=99) == 21
        assert await store.summarize_dead(DeadFilter(), limit=99) == DeadSummary(0, ())


async def test_the_letter_of_a_message_is_found_by_one_call(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(redis_url) as store:
        first, second = await bury(store, b"a", b"b")
        with calls(monkeypatch) as names:
            found = (await store.facts(first.message_id)).letter
        assert names == ["facts"]
        assert found is not None
        assert found.id == first.id

        await store.purge(DeadFilter(ids=(first.id,)), limit=9)
        (moved,) = await store.redrive([second])
        for gone_ in (first, second):
            assert (await store.facts(gone_.message_id)).letter is None
        assert (await store.facts(moved)).message is not None
