"""The keys of Redis, with something of everything in them, and what they look like."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from nightmail.outcome import Dead, Done, Retry
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, QUEUE, SECOND, message
from nightmail.testing.conformance.workers import a_report

ELSEWHERE: Final = "elsewhere"
"""In a cluster, a queue of another slot."""
OF_A_FIXED_SHAPE: Final = ("m:<id>", "d:<id>", "v:<id>", "meta")
_NUMBERS: Final = {
    re.compile(r"(?<=:group:)[0-9a-f]{16}$"): "<digest>",
    re.compile(r"(?<=:)[0-9a-f]{16}$"): "<id>",
    re.compile(r"(?<=^due:)\d$"): "<priority>",
}


async def fill(store: RedisStore, clock: ManualClock) -> None:
    """Make every key, except `moved`, which is there for a moment only. The store keeps what is delivered."""
    # One that runs, with another behind it that has the same ordering key; one that died, and one before its time.
    for name in ("running", "dead"):
        await store.publish(message(headers={"a": 1}, ordering_key=name, timer_id=name, dedup_for=HOUR))
        await store.publish(message(ordering_key=name))
    running, dead = (await store.claim([QUEUE], limit=2, lease=HOUR, token=uuid4())).deliveries
    await store.settle([Settlement(dead, Dead("rejected", error="e"))])
    await store.publish(message(ordering_key="running", due=HOUR))
    # Superseded, and to be stopped.
    await store.publish(message(timer_id="running", on_conflict="replace"))
    await store.request_stop(running.id, by="ann")
    # Of every priority; one is delivered, one failed, others died, and one of these is moved.
    await store.publish_batch([message(priority=level) for level in range(10)])
    done, failed, *died = (await store.claim([QUEUE], limit=5, lease=HOUR, token=uuid4())).deliveries
    await store.settle([Settlement(done, Done()), Settlement(failed, Retry(HOUR, error="e"))])
    await store.settle([Settlement(each, Dead("rejected")) for each in died])
    await store.redrive((await store.dead(DeadFilter()))[:1], to=ELSEWHERE)
    # Leases that expired, of messages and of dead letters: the next claim finds more than it takes.
    await store.claim_dead([QUEUE], limit=2, lease=SECOND, token=uuid4())
    await store.claim([QUEUE], limit=3, lease=SECOND, token=uuid4())
    clock.advance(timedelta(seconds=2))
    await store.claim([QUEUE], limit=1, lease=HOUR, token=uuid4())
    await store.claim_dead([QUEUE], limit=1, lease=HOUR, token=uuid4())
    await store.recall([QUEUE], uuid4())
    await store.pause(QUEUE, ordering_key="running", by="ann", reason="a reason")
    await store.pause(QUEUE, by="ann")
    await store.report(a_report("11" * 8))


def described(client: Any) -> str:
    """Each kind of key: its type, and what is in those hashes whose fields are always the same."""
    kinds: dict[str, tuple[str, set[str]]] = {}
    for key in client.scan_iter("{nightmail*", count=1000):
        type_ = client.type(key).decode()
        tag, _, name = key.decode().partition("}:")
        kind = name
        for number, shown in _NUMBERS.items():
            kind = number.sub(shown, kind)
        _, fields = kinds.setdefault(f"{{prefix{':queue' if ':' in tag else ''}}}:{kind}", (type_, set()))
        if kind in OF_A_FIXED_SHAPE:
            for field, value in client.hgetall(key).items():
                # What is packed into it is a matter of its size.
                size = f" ({len(value)} bytes)" if field == b"state" else ""
                fields.add(field.decode() + size)
    return "".join(
        f"{key}  {type_}\n" + "".join(f"    {field}\n" for field in sorted(fields))
        for key, (type_, fields) in sorted(kinds.items())
    )
