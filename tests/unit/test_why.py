"""What `why` says beyond the conformance suite: what only some stores know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nightmail.controls import MOST_AHEAD, MessageFacts, WorkerRecord
from nightmail.operations.reasons import Available, Delivered, Locked
from nightmail.operations.why import explain, why
from nightmail.outcome import Done
from nightmail.records import StoredMessage
from nightmail.store import Settlement
from nightmail.stores.memory.store import MemoryStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import LEASE, QUEUE, fresh_token, message

NOW = datetime(2026, 11, 17, 3, 0, tzinfo=UTC)


def a_message() -> StoredMessage:
    return StoredMessage(
        id=7,
        queue=QUEUE,
        timer_id=None,
        ordering_key=None,
        priority=0,
        due_at=NOW,
        published_at=NOW,
        expires_at=None,
        attempts=0,
        body=b"secret",
        encoded_headers="{}",
        deliveries=0,
        superseded=False,
        claimed_at=None,
        lease_until=None,
        running=False,
        first_attempt_at=None,
        last_attempt_at=None,
        last_error=None,
    )


def a_worker() -> WorkerRecord:
    return WorkerRecord(
        id="0123456789abcdef",
        host="host-1",
        pid=77,
        version="1",
        queues=(QUEUE,),
        started_at=NOW,
        seen_at=NOW,
    )


async def test_a_delivered_message_says_when_where_a_history_is_kept() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock, keep_delivered=True)
    await store.open()
    id_ = await store.publish(message())
    assert id_ is not None
    (delivery,) = (await store.claim([QUEUE], limit=1, lease=LEASE, token=fresh_token())).deliveries
    await store.settle([Settlement(delivery, Done())])
    clock.advance(timedelta(minutes=5))

    (reason,) = await why(store, id_)

    assert reason == Delivered(
        delivered_at=clock.now() - timedelta(minutes=5), delivered_ago=timedelta(minutes=5)
    )
    assert reason.text.startswith("delivered 5 min ago (20")
    await store.close()


def test_a_locked_message_is_not_available() -> None:
    facts = MessageFacts(now=NOW, message=a_message(), locked=True)

    assert explain(facts, [a_worker()]) == [Locked()]


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (0, "every 5 s"),
        (1, "every 5 s; 1 message of its queue is ahead of it"),
        (MOST_AHEAD, "every 5 s; 1,000 or more messages of its queue are ahead of it"),
    ],
)
def test_what_is_ahead_is_counted_in_words(ahead: int, said: str) -> None:
    facts = MessageFacts(now=NOW, message=a_message(), ahead=ahead)

    (reason,) = explain(facts, [a_worker()])

    assert isinstance(reason, Available)
    assert reason.text.endswith(said)
