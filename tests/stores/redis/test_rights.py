"""Accounts that may not do everything: a script that fails has written nothing."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from nightmail.errors import NightmailError, NotAllowed, PublishUncertain
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Postpone, Release, Retry
from nightmail.records import DeadFilter, DeadLetter
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore
from nightmail.stores.redis.scripts import Script, script
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, MINUTE, QUEUE, message
from nightmail.testing.conformance.workers import a_report
from tests.stores.redis.support import client, transaction

pytestmark = pytest.mark.redis

USER = "lacking"
PASSWORD = "secret"
ONLY_ONCE = {b"{nightmail}:processes", b"{nightmail}:queues"}
"""Written before a script and not by it."""


@dataclass(frozen=True)
class Scene:
    """A queue in which there is something of everything."""

    running: list[Delivery]
    expired: list[Delivery]
    cared: list[Delivery]
    letters: list[DeadLetter]


async def scene(store: RedisStore, clock: ManualClock) -> Scene:
    await store.migrate()
    for number in range(6):
        await store.publish(message(b"dead", timer_id=f"dead {number}", ordering_key=f"d{number}"))
    taken = await store.claim([QUEUE], limit=6, lease=LEASE, token=uuid4())
    await store.settle([Settlement(each, Dead("test", error="e")) for each in taken.deliveries])
    for number in range(4):
        await store.publish(message(b"x", timer_id=f"expired {number}", ordering_key=f"e{number}"))
    expired = await store.claim([QUEUE], limit=4, lease=timedelta(seconds=5), token=uuid4())
    for number in range(3):
        await store.publish(message(b"late", ordering_key=f"l{number}", due=timedelta(seconds=2)))
    clock.advance(timedelta(seconds=10))
    for number in range(4):
        await store.publish(message(b"r", timer_id=f"running {number}", ordering_key=f"r{number}"))
        await store.publish(message(b"follower", ordering_key=f"r{number}"))
    running = [
        each
        for each in (await store.claim([QUEUE], limit=11, lease=HOUR, token=uuid4())).deliveries
        if each.body == b"r"
    ]
    cared = await store.claim_dead([QUEUE], limit=2, lease=HOUR, token=uuid4())
    await store.publish(message(b"waiting", timer_id="waiting", ordering_key="w"))
    await store.publish(message(b"behind", timer_id="behind", ordering_key="w"))
    await store.publish(message(b"delayed", timer_id="delayed", ordering_key="y", due=MINUTE))
    await store.publish(message(b"plain"))
    await store.request_stop(running[1].id, by="ann")
    await store.pause(QUEUE, ordering_key="over", by="ann", until=timedelta(milliseconds=1))
    await store.pause(QUEUE, ordering_key="y", by="ann")
    await store.pause("probed", by="breaker", until=timedelta(milliseconds=1), automatic=True)
    await store.publish(message(b"probe", queue="probed", ordering_key="p"))
    await store.report(a_report("11" * 8))
    clock.advance(timedelta(milliseconds=1))
    held = {each.id for each in cared.deliveries}
    letters = [each for each in await store.dead(DeadFilter()) if each.id not in held]
    return Scene(running, list(expired.deliveries), list(cared.deliveries), letters)


def settled(outcome: Any) -> Callable[[RedisStore, Scene], Awaitable[object]]:
    return lambda store, found: store.settle([Settlement(found.running[0], outcome)])


def cared_for(outcome: Any) -> Callable[[RedisStore, Scene], Awaitable[object]]:
    return lambda store, found: store.settle([Settlement(found.cared[0], outcome)])


async def acknowledge(store: RedisStore, found: Scene, own: Any) -> None:
    async with transaction(store, found.running[:1], own) as pipe:
        pipe.set("theirs", "written")


Verb = Callable[[RedisStore, Scene], Awaitable[object]]
VERBS: dict[str, tuple[str, Verb]] = {
    "publish": ("publish", lambda store, _: store.publish(message())),
    "publish with a key": ("publish", lambda store, _: store.publish(message(ordering_key="w"))),
    "publish a timer": (
        "publish",
        lambda store, _: store.publish(message(timer_id="new", dedup_for=HOUR, ordering_key="n")),
    ),
    "replace": (
        "publish",
        lambda store, _: store.publish(message(timer_id="waiting", on_conflict="replace", ordering_key="n")),
    ),
    "supersede": (
        "publish",
        lambda store, _: store.publish(message(timer_id="running 0", on_conflict="replace")),
    ),
    "publish a batch": ("publish", lambda store, _: store.publish_batch([message(), message(priority=3)])),
    "claim": ("claim", lambda store, _: store.claim([QUEUE], limit=20, lease=LEASE, token=uuid4())),
    "look ahead": ("look_ahead", lambda store, _: store.look_ahead([QUEUE, "probed"])),
    "claim dead": (
        "claim_dead",
        lambda store, _: store.claim_dead([QUEUE], limit=20, lease=LEASE, token=uuid4()),
    ),
    "recall": ("recall", lambda store, found: store.recall([QUEUE], found.running[0].token)),
    "recall dead": ("recall_dead", lambda store, found: store.recall_dead([QUEUE], found.cared[0].token)),
    "done": ("settle", settled(Done())),
    "retry": ("settle", settled(Retry(MINUTE))),
    "postpone": ("settle", settled(Postpone(MINUTE))),
    "release": ("settle", settled(Release())),
    "dead": ("settle", settled(Dead("broken", error="e"))),
    "done with a letter": ("settle_dead", cared_for(Done())),
    "retry a letter": ("settle_dead", cared_for(Retry(MINUTE))),
    "give a letter up": ("settle_dead", cared_for(Dead("broken"))),
    "extend": ("extend", lambda store, found: store.extend(found.running, HOUR)),
    "extend what expired": ("extend", lambda store, found: store.extend(found.expired, HOUR)),
    "extend a letter": ("extend_dead", lambda store, found: store.extend(found.cared, HOUR)),
    "cancel": ("cancel", lambda store, _: store.cancel(QUEUE, "waiting")),
    "cancel all": ("cancel_all", lambda store, _: store.cancel_all(QUEUE)),
    "reschedule": ("reschedule", lambda store, _: store.reschedule(QUEUE, "waiting", HOUR)),
    "redrive": ("redrive", lambda store, found: store.redrive(found.letters)),
    "redrive elsewhere": ("redrive", lambda store, found: store.redrive(found.letters, to="other")),
    "purge": ("purge", lambda store, _: store.purge(DeadFilter(queue=QUEUE), limit=10)),
    "probe": ("claim", lambda store, _: store.claim(["probed"], limit=9, lease=LEASE, token=uuid4())),
    "pause": ("pause", lambda store, _: store.pause(QUEUE, by="ann")),
    "pause again": ("pause", lambda store, _: store.pause(QUEUE, ordering_key="y", by="ann", until=MINUTE)),
    "resume": ("resume", lambda store, _: store.resume(QUEUE, ordering_key="y")),
    "probe again": ("probe_again", lambda store, found: store.probe_again(found.running[0])),
    "request a stop": (
        "request_stop",
        lambda store, found: store.request_stop(found.running[0].id, by="ann"),
    ),
    "report": ("report", lambda store, _: store.report(a_report("22" * 8))),
    "sign off": ("sign_off", lambda store, _: store.sign_off("11" * 8)),
    "sweep": ("sweep", lambda store, _: store.sweep(older_than=timedelta(0), limit=10)),
}


def commands_of(name: str) -> list[str]:
    """Every command that this script may use."""
    text = script(name).text
    found = set(re.findall(r"(?:redis\.p?call|in_parts)\('([A-Z]+)'", text))
    assert {"HSET", "ZADD"} <= found
    return sorted(found | {"PUBLISH"})


@asynccontextmanager
async def lacking(own: Any, *rules: str) -> AsyncIterator[None]:
    """An account that may do everything but this."""
    await own.execute_command(
        "ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", "~*", "&*", "+@all", *rules
    )
    try:
        yield
    finally:
        await own.execute_command("ACL", "DELUSER", USER)


@asynccontextmanager
async def opened(url: str, clock: ManualClock) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, clock=clock, keep_delivered=True)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def as_lacking(url: str) -> str:
    return url.replace("://", f"://{USER}:{PASSWORD}@")


async def refusal(verb: Awaitable[object]) -> str | None:
    try:
        await verb
    except NightmailError as error:
        return str(error)
    return None


async def everything(own: Any) -> dict[bytes, Any]:
    keys = [key for key in await own.keys("*") if key not in ONLY_ONCE]
    async with own.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.dump(key)
        return dict(zip(keys, await pipe.execute(), strict=True))


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_with_a_forbidden_command_works_or_has_written_nothing(
    redis_url: str, verb: str
) -> None:
    name, run = VERBS[verb]
    refused = []
    async with client(redis_url) as own:
        clock = ManualClock()
        found: Scene | None = None
        for command in commands_of(name):
            if found is None:
                await own.flushdb()
                async with opened(redis_url, clock) as store:
                    found = await scene(store, clock)
                before = await everything(own)
            async with lacking(own, f"-{command}"), opened(as_lacking(redis_url), clock) as store:
                why = await refusal(run(store, found))
                if why is None:
                    found = None
                    continue
                refused.append(command)
                assert "this account may not use" in why
                assert await everything(own) == before, command
    assert "PUBLISH" not in refused
    assert refused


@pytest.mark.parametrize(
    "command", ["GET", "HLEN", "UNLINK", "ZCARD", "ZRANGEBYSCORE", "ZREM", "ZREMRANGEBYLEX"]
)
async def test_a_sweep_of_the_last_letter_of_a_queue_with_a_forbidden_command_has_deleted_nothing(
    redis_url: str, command: str
) -> None:
    async with client(redis_url) as own:
        clock = ManualClock()
        async with opened(redis_url, clock) as store:
            await store.migrate()
            await store.publish(message())
            taken = await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())
            await store.settle([Settlement(each, Dead("test")) for each in taken.deliveries])
        clock.advance(HOUR)
        before = await everything(own)

        async with lacking(own, f"-{command}"), opened(as_lacking(redis_url), clock) as store:
            assert await refusal(store.sweep(older_than=MINUTE, limit=10)) is not None

        assert await everything(own) == before


async def test_an_acknowledgement_in_a_multi_is_refused_before_the_callers_commands_are_carried_out(
    redis_url: str,
) -> None:
    async with client(redis_url) as own:
        clock = ManualClock()
        async with opened(redis_url, clock) as store:
            found = await scene(store, clock)
        before = await everything(own)
        for command in commands_of("settle"):
            if command in ("PUBLISH", "SET", "EXISTS", "TIME"):
                continue
            async with (
                lacking(own, f"-{command}"),
                opened(redis_url, clock) as store,
                client(as_lacking(redis_url)) as theirs,
            ):
                with pytest.raises(NightmailError, match="this account may not use"):
                    await acknowledge(store, found, theirs)
                assert await everything(own) == before, command


async def test_an_account_without_channels_publishes_and_settles_once(redis_url: str) -> None:
    async with client(redis_url) as own:
        clock = ManualClock()
        async with (
            lacking(own, "resetchannels"),
            opened(as_lacking(redis_url), clock) as store,
        ):
            await store.migrate()
            assert await store.publish(message(b"one")) is not None
            assert await store.publish(message(b"timer", timer_id="t")) is not None
            claimed = await store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4())
            assert [each.body for each in claimed.deliveries] == [b"one", b"timer"]
            await store.settle([Settlement(each, Done()) for each in claimed.deliveries])
            assert await store.stats() == {}


@pytest.mark.parametrize("rule", ["-publish", "resetchannels"])
async def test_concurrent_publishes_of_an_account_without_wakeups_are_stored_once_each(
    redis_url: str, rule: str
) -> None:
    async with client(redis_url) as own:
        clock = ManualClock()
        async with lacking(own, rule), opened(as_lacking(redis_url), clock) as store:
            await store.migrate()

            # Those without a timer id go together, each of the others alone.
            ids = await asyncio.gather(
                *(store.publish(message(b"%d" % number)) for number in range(5)),
                *(store.publish(message(b"%d" % number, timer_id=f"t{number}")) for number in range(5, 10)),
            )

            found = {pending.body: pending.id for pending in await store.peek()}
            assert len(await store.peek()) == 10
            assert found == {b"%d" % number: id_ for number, id_ in enumerate(ids)}


# --------------------------------------------------------------------------------- servers before 7.0


@pytest.fixture
def before_seven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts cannot ask what the account may do, as on servers before 7.0."""

    def older(name: str, **options: bool) -> Script:
        text = script(name, flags=False).text.replace("redis.acl_check_cmd", "(nil)")
        return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    monkeypatch.setattr("nightmail.stores.redis.script_calls.script", older)


@pytest.mark.usefixtures("before_seven")
@pytest.mark.parametrize(
    "verb",
    [
        "publish",
        "publish a timer",
        "claim",
        "probe",
        "pause",
        "request a stop",
        "report",
        "done",
        "dead",
        "redrive",
        "sweep",
    ],
)
async def test_on_an_older_server_a_forbidden_command_is_found_before_anything_is_written(
    redis_url: str, verb: str
) -> None:
    await test_a_verb_with_a_forbidden_command_works_or_has_written_nothing(redis_url, verb)


# ---------------------------------------------------------------------------------------------- check


async def test_a_check_names_what_an_account_that_can_do_nothing_lacks(redis_url: str) -> None:
    async with client(redis_url) as own:
        clock = ManualClock()
        async with opened(redis_url, clock) as store:
            await store.migrate()
        async with lacking(own, "-hset", "-zadd"), opened(as_lacking(redis_url), clock) as store:
            with pytest.raises(NotAllowed, match="may not use HSET, ZADD"):
                await store.check()


async def test_a_check_warns_of_what_an_account_cannot_do(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(redis_url) as own:
        clock = ManualClock()
        async with opened(redis_url, clock) as store:
            await store.migrate()
        async with (
            lacking(own, "-zcount", "resetchannels"),
            opened(as_lacking(redis_url), clock) as store,
        ):
            await store.check()
    assert "cannot inspect: it may not use ZCOUNT" in caplog.text
    assert "may not use PUBLISH on our channels" in caplog.text


async def test_a_forbidden_wait_is_told_by_the_check_and_a_publish_says_that_it_is_stored(
    redis_url: str,
) -> None:
    async with client(redis_url) as own, lacking(own, "-wait"):
        store = RedisStore(as_lacking(redis_url), wait_replicas=1)
        await store.open()
        try:
            await store.migrate()
            with pytest.raises(NotAllowed, match="WAIT"):
                await store.check()
            with pytest.raises(PublishUncertain, match=r"is stored.*may not use WAIT"):
                await store.publish(message())
            assert len(await store.peek()) == 1
        finally:
            await store.close()
