"""What other software did to our keys: a message is buried, it neither blocks its queue nor disappears."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from nightmail.engine.redriving import redrive
from nightmail.errors import SchemaDrift, SchemaMissing, SchemaOutdated
from nightmail.limits import MAX_BODY_BYTES
from nightmail.outcome import Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.stores.redis.keys import Keys
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, claim_letters, message
from tests.stores.redis.support import client, open_store
from tests.stores.support import bury, claim, done, until

pytestmark = pytest.mark.redis

TAG = "{nightmail:orders}"


def key_of(id_: int | None) -> str:
    assert id_ is not None
    return f"{TAG}:m:{id_:016x}"


async def gone(own: Any, key: str) -> None:
    await own.delete(key)


async def a_string(own: Any, key: str) -> None:
    await own.delete(key)
    await own.set(key, b"not a message")


async def a_list(own: Any, key: str) -> None:
    await own.delete(key)
    await own.rpush(key, b"not a message")


async def without_body(own: Any, key: str) -> None:
    await own.hdel(key, "body")


async def with_another_state(own: Any, key: str) -> None:
    await own.hset(key, "state", b"not ours")


async def with_no_number_for_a_time(own: Any, key: str) -> None:
    await own.hset(key, "state", b"\xff" * 59)


@pytest.mark.parametrize(
    ("tamper", "kept", "told"),
    [
        pytest.param(gone, b"", "gone", id="its hash was removed"),
        pytest.param(a_string, b"not a message", "string", id="a string in its place"),
        pytest.param(a_list, b"", "list", id="a list in its place"),
        pytest.param(without_body, b"", "body", id="its body was removed"),
        pytest.param(with_another_state, b"victim", "state", id="its state was overwritten"),
        pytest.param(with_no_number_for_a_time, b"victim", "state", id="a time that is no number"),
    ],
)
async def test_a_message_that_was_tampered_with_is_buried_and_its_neighbours_are_delivered(
    redis_url: str, tamper: Callable[[Any, str], Awaitable[None]], kept: bytes, told: str
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message(b"before"))
        victim = await store.publish(message(b"victim", timer_id="t"))
        await store.publish(message(b"after"))
        await tamper(own, key_of(victim))

        assert [delivery.body for delivery in await claim(store, limit=2)] == [b"before", b"after"]

        (letter,) = await store.dead(DeadFilter())
        assert (letter.message_id, letter.queue, letter.body) == (victim, QUEUE, kept)
        assert letter.reason == "unreadable"
        assert told in (letter.error or "")
        assert (await store.stats())[QUEUE].dead == 1
        # Its name is free again.
        assert await store.publish(message(b"next", timer_id="t")) is not None
        assert [delivery.body for delivery in await claim(store)] == [b"next"]


@pytest.mark.parametrize("tamper", [gone, a_string, without_body])
async def test_the_ordering_key_of_a_message_that_was_tampered_with_is_let_go(
    redis_url: str, tamper: Callable[[Any, str], Awaitable[None]]
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        victim = await store.publish(message(b"victim", ordering_key="k"))
        await store.publish(message(b"next", ordering_key="k"))
        await tamper(own, key_of(victim))

        found = await claim(store) + await claim(store)

        assert [delivery.body for delivery in found] == [b"next"]


async def test_a_message_that_was_tampered_with_while_it_waited_in_line_is_passed_over(
    redis_url: str,
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message(b"head", ordering_key="k"))
        victim = await store.publish(message(b"victim", ordering_key="k"))
        await store.publish(message(b"last", ordering_key="k"))
        await gone(own, key_of(victim))

        assert await done(store, await claim(store)) == [WriteResult.WRITTEN]

        assert [delivery.body for delivery in await claim(store)] == [b"last"]
        assert [letter.message_id for letter in await store.dead(DeadFilter())] == [victim]


async def test_a_message_that_was_tampered_with_while_it_ran_is_lost_to_its_holder_and_buried(
    redis_url: str,
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message(b"removed"))
        await store.publish(message(b"overwritten"))
        removed, overwritten = await claim(store)
        await gone(own, key_of(removed.id))
        await with_another_state(own, key_of(overwritten.id))

        assert await done(store, [removed]) == [WriteResult.LOST]
        assert await store.settle([Settlement(overwritten, Retry())]) == [WriteResult.WRITTEN]

        # That of the removed one is found when its lease ends.
        await own.zadd(f"{TAG}:run", {f"{removed.id:016x}": 1})
        assert await claim(store) == []
        assert {letter.message_id for letter in await store.dead(DeadFilter())} == {
            removed.id,
            overwritten.id,
        }


async def test_headers_that_are_no_text_are_handed_to_the_worker_which_buries_them(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        victim = await store.publish(message(b"victim", headers={"a": 1}))
        await own.hset(key_of(victim), "headers", b"\xff\xfe")

        (delivery,) = await claim(store)

        with pytest.raises(ValueError, match=r"Expecting|JSON"):
            _ = delivery.headers


async def test_headers_that_are_too_large_are_given_up_unread(redis_url: str) -> None:
    async with client(redis_url) as own, open_store(redis_url) as store:
        large = await store.publish(message(b"large", ordering_key="k"))
        await store.publish_batch([message(b"next", ordering_key="k"), message(b"other")])
        await own.hset(key_of(large), "headers", b"x" * 2_000_000)

        found = [delivery.body for _ in range(2) for delivery in await claim(store)]

        assert sorted(found) == [b"next", b"other"]
        (letter,) = await store.dead(DeadFilter(reason="too_large"))
        assert (letter.body, letter.error) == (
            b"large",
            "the headers have 2000000 bytes, and at most 1048576 are read",
        )
        assert not (await store.claim_dead([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries


@pytest.mark.parametrize("structure", ["due:0", "run", "later", "heads", "dead", "expired", "lines"])
async def test_a_foreign_type_in_the_place_of_a_queue_is_told_before_anything_is_written(
    redis_url: str, structure: str
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message(b"kept", priority=5, ordering_key="k"))
        await store.publish(message(b"later", priority=5, ordering_key="k", due=HOUR))
        key = f"{TAG}:{structure}"
        await own.rename(key, "aside") if await own.exists(key) else None
        await own.set(key, b"foreign")
        before = await everything(own)

        with pytest.raises(SchemaDrift):
            await claim(store)
        with pytest.raises(SchemaDrift):
            await store.publish(message(b"new", ordering_key="k", timer_id="t"))

        assert await everything(own) == before
        await own.delete(key)
        await own.rename("aside", key) if await own.exists("aside") else None
        assert [delivery.body for delivery in await claim(store)] == [b"kept"]


async def everything(own: Any) -> dict[bytes, Any]:
    """All keys with their contents."""
    found = {}
    for key in await own.keys("*"):
        found[key] = await own.dump(key)
    return found


# -------------------------------------------------------------------------------------------- meta


async def test_a_store_that_was_never_migrated_says_so(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await own.delete("{nightmail}:meta")

        with pytest.raises(SchemaMissing, match="nightmail migrate"):
            await store.check()


async def test_keys_of_an_older_and_a_newer_version_are_told_apart(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await own.hset("{nightmail}:meta", "version", 0)
        with pytest.raises(SchemaOutdated, match="version 0"):
            await store.check()

        await own.hset("{nightmail}:meta", mapping={"version": 2, "serves": 2})
        with pytest.raises(
            SchemaDrift, match="serves code of version 2 or later, and this is version 1: update"
        ):
            await store.check()

        await own.hset("{nightmail}:meta", "serves", 1)
        await store.check()


async def test_another_look_interval_or_type_of_the_meta_key_is_drift(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await own.hset("{nightmail}:meta", "look_interval", 60)
        with pytest.raises(SchemaDrift, match="look_interval is 60 and not 5"):
            await store.check()

        await own.hdel("{nightmail}:meta", "identity")
        with pytest.raises(SchemaDrift, match="identity"):
            await store.check()

        await own.delete("{nightmail}:meta")
        await own.set("{nightmail}:meta", "1")
        with pytest.raises(SchemaDrift, match="string and not a hash"):
            await store.check()


# ------------------------------------------------------------------------------------ forged records


@pytest.mark.parametrize("field", ["timer", "key", "headers"])
async def test_a_text_of_any_length_is_not_read_as_something_else(redis_url: str, field: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        victim = await store.publish(message(b"victim", queue="a", timer_id="t", headers={"a": 1}))
        await store.publish(message(b"innocent", queue="b"))
        # With lengths of 16 bits the rest of this text would be taken for what stands behind it in the reply.
        await own.hset(f"{{nightmail:a}}:m:{victim:016x}", field, b"x" * (65536 + 7))

        claimed = await store.claim(["a", "b"], limit=10, lease=LEASE, token=uuid4())

        assert sorted((each.queue, each.body) for each in claimed.deliveries) == [
            ("a", b"victim"),
            ("b", b"innocent"),
        ]


@pytest.mark.parametrize(("field", "size"), [("body", MAX_BODY_BYTES + 1), ("headers", 2_000_000)])
async def test_a_letter_that_was_made_too_large_is_not_offered_and_can_be_redriven(
    redis_url: str, field: str, size: int
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        odd, _ = await bury(store, b"odd", b"sound")
        await own.hset(f"{TAG}:d:{odd.id:016x}", field, b"x" * size)

        assert [each.body for _ in range(2) for each in await claim_letters(store)] == [b"sound"]

        (shown,) = await store.dead(DeadFilter(ids=(odd.id,)))
        assert len(shown.body if field == "body" else shown.encoded_headers) == size
        assert await redrive(store, DeadFilter(ids=(odd.id,))) == 1
        assert await claim(store) == []
        assert len(await store.dead(DeadFilter(reason="too_large"))) == 1


@pytest.mark.parametrize("member", [b"short", b"x" * 16, b"0" * 17, b"0" * 64, b""])
async def test_what_is_no_id_is_taken_out_of_the_way(redis_url: str, member: bytes) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message(b"before"))
        await own.zadd(f"{TAG}:due:0", {member: 1})
        await own.hset(f"{TAG}:m:".encode() + member, mapping={"body": b"forged", "state": b"\0" * 59})
        await own.zadd(f"{TAG}:dead", {b"no letter": 0})
        await own.zadd(f"{TAG}:dead:due", {b"no letter": 1})

        assert [delivery.body for delivery in await claim(store)] == [b"before"]
        assert await claim(store) == []
        (letter,) = await store.dead(DeadFilter())
        assert (letter.reason, letter.body) == ("unreadable", b"forged")
        assert not (await store.claim_dead([QUEUE], limit=5, lease=LEASE, token=uuid4())).deliveries


@pytest.mark.parametrize("last", [b"no id", b"f" * 16, b"", b"7fffffffffffffff"])
async def test_a_foreign_last_id_stops_no_caller_from_publishing(redis_url: str, last: bytes) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        first = await store.publish(message(b"first"))
        await own.set(f"{TAG}:last", last)

        second = await store.publish(message(b"second"))

        assert first is not None
        assert second is not None
        assert first < second < 2**63
        assert [delivery.body for delivery in await claim(store)] == [b"first", b"second"]
        assert await store.cancel_all(QUEUE) == 0


async def test_counters_stop_at_their_limit(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        id_ = await store.publish(message())
        state = await own.hget(key_of(id_), "state")
        await own.hset(key_of(id_), "state", state[:48] + b"\xff" * 8 + state[56:])

        (delivery,) = await claim(store)
        assert delivery.deliveries == 2**31 - 1
        assert await store.settle([Settlement(delivery, Retry())]) == [WriteResult.WRITTEN]

        (delivery,) = await claim(store)
        assert (delivery.attempts, delivery.deliveries) == (2**31 - 1, 1)


async def test_burying_many_reads_the_heads_of_all_keys_once(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish_batch([message(ordering_key=str(number)) for number in range(200)])
        await store.publish(message(b"last"))
        for key in await own.keys(f"{TAG}:m:*"):
            if await own.hget(key, "key"):
                await own.hdel(key, "body")
        before = (await own.info("commandstats")).get("cmdstat_hgetall", {"calls": 0})["calls"]

        assert [delivery.body for delivery in await claim(store, limit=10)] == [b"last"]

        after = (await own.info("commandstats"))["cmdstat_hgetall"]["calls"]
        assert after - before == 1
        assert (await store.stats())[QUEUE].dead == 200


@pytest.mark.parametrize(
    "said", [b"", b"1", b"\x00\xff" * 500, b'{"queue": "orders"}', b"DEL", b"x" * 1_000_000]
)
async def test_a_forged_wakeup_makes_a_worker_look_and_nothing_else(redis_url: str, said: bytes) -> None:
    keys = Keys("nightmail", int(redis_url.rpartition("/")[2]))
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message(b"later", due=HOUR))
        with store.listen([QUEUE]) as forged, store.listen(["mail"]) as other:
            await until(lambda: store.listening)
            forged.clear()
            other.clear()

            for queue in (QUEUE, "no queue of this store"):
                await own.publish(keys.channel(queue), said)

            assert await forged.wait(10)
            assert not await other.wait(0.1)
            assert await claim(store) == []
            assert [each.body for each in await store.peek(QUEUE)] == [b"later"]
            # The next one that is genuine is heard.
            forged.clear()
            await store.publish(message(b"now"))
            assert await forged.wait(10)
            assert [each.body for each in await claim(store)] == [b"now"]
