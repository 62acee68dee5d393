"""Names are values: whatever a queue, a timer or a key is called, it comes back as it was and changes nothing else."""

from __future__ import annotations

import re
from typing import Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nightmail import Message
from nightmail.message import NAME_LIMIT
from nightmail.outcome import Dead, Release, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import FullStore
from nightmail.stores import open_store
from nightmail.testing.conformance.build import HOUR, claim_all
from tests.stores.support import opened, settle

INJECTIONS: Final = (
    "'; drop table nightmail_messages; --",
    '"; drop table nightmail_messages; --',
    "`; drop table nightmail_messages; -- `",
    "') or 1=1 --",
    "\\'; delete from nightmail_dead; #",
    "x' union select token from nightmail_messages --",
    "%(queue)s %s %% :queue $1 {0} {queue}",
    "}:m:0000000000000000",
    "{other}",
    "bystander",
    "a\r\nPUBLISH x y\r\n",
    "*3\r\n$3\r\nDEL\r\n",
    "__proto__",
    "\U0001f600" * 60,
    "\x1b[2J\x07",
    "\u202eevil",
    " ",
    "NULL",
    "0",
    "x" * NAME_LIMIT,
)
BYSTANDER: Final = Message(queue="a bystander", body=b"mine", timer_id="a timer", ordering_key="a key")
NAMES: Final = st.one_of(
    st.sampled_from(INJECTIONS),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=80),
)


async def take_one(store: FullStore, queue: str) -> tuple[str, str | None, str | None, object, bytes]:
    (delivery,) = await claim_all(store, queue)
    assert await settle(store, [delivery], Release()) == [WriteResult.WRITTEN]
    return delivery.queue, delivery.timer_id, delivery.ordering_key, delivery.headers, delivery.body


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(queue=NAMES, timer_id=NAMES, key=NAMES)
@example(queue=INJECTIONS[0], timer_id=INJECTIONS[1], key=INJECTIONS[2])
@example(queue=INJECTIONS[7], timer_id=INJECTIONS[8], key=INJECTIONS[6])
async def test_every_name_comes_back_as_it_was_and_touches_nothing_else(
    url: str, queue: str, timer_id: str, key: str
) -> None:
    mine = (queue, timer_id, key, {key: timer_id}, b"odd")
    odd = Message(queue=queue, body=b"odd", timer_id=timer_id, ordering_key=key, headers={key: timer_id})
    async with opened(open_store(url)) as store:
        await store.publish(BYSTANDER)
        sent = await store.publish(odd)
        assert sent is not None

        assert await store.publish(odd) is None
        (waiting,) = await store.peek(queue)
        assert (waiting.queue, waiting.timer_id, waiting.ordering_key) == mine[:3]
        assert await take_one(store, queue) == mine
        assert await store.reschedule(queue, timer_id, HOUR)
        assert await store.cancel(queue, timer_id)
        assert not await store.cancel(queue, timer_id)

        await store.publish(odd)
        assert await settle(store, await claim_all(store, queue), Dead(key, timer_id)) == [
            WriteResult.WRITTEN
        ]
        (letter,) = await store.dead(DeadFilter(queue=queue, reason=key, error=timer_id), limit=10)
        assert (letter.queue, letter.timer_id, letter.ordering_key, letter.body) == (*mine[:3], b"odd")
        assert await store.purge(DeadFilter(queue=queue), limit=10) == 1

        assert await store.cancel_all(queue) == 0
        assert await take_one(store, BYSTANDER.queue) == ("a bystander", "a timer", "a key", {}, b"mine")
        assert await store.cancel_all(BYSTANDER.queue) == 1


PREFIX: Final = re.compile(r"(?:[a-z_][a-z0-9_]{0,39}\.)?[a-z_][a-z0-9_]{0,39}")


@pytest.mark.parametrize(
    "url", ["sqlite:///nowhere.db", "postgresql://localhost/x", "mysql://localhost/x", "redis://localhost"]
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prefix=st.one_of(
        st.sampled_from(INJECTIONS), st.text(max_size=60), st.from_regex(r"[a-z_.\"'`; -]{0,50}")
    )
)
def test_a_prefix_of_tables_is_harmless_or_refused(url: str, prefix: str) -> None:
    try:
        open_store(url, tables=prefix)
    except ValueError as error:
        assert "table" in str(error) or "schema" in str(error)  # noqa: PT017 - which ones are refused is the question
    else:
        assert PREFIX.fullmatch(prefix)


@pytest.mark.parametrize("prefix", ["select", "_", "order", "x" * 40])
async def test_every_prefix_that_is_accepted_works(url: str, prefix: str) -> None:
    async with opened(open_store(url, tables=prefix)) as store:
        await store.publish(Message(queue="q", body=b"here"))

        (delivery,) = await claim_all(store, "q")
        assert delivery.body == b"here"
