"""A connection that dies after something was sent and before it was answered: it is told as uncertain, and not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Literal, TypeAlias

import pytest

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.outcome import Done, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.testing.conformance.build import LEASE, QUEUE, bodies, claim_all, fresh_token, message
from tests.stores.shared.backend import Backend
from tests.stores.support import claim

What: TypeAlias = Literal["publish", "timer", "claim", "settle"]

every_publish = pytest.mark.parametrize(
    ("what", "verb"),
    [
        pytest.param("publish", lambda store: store.publish(message()), id="publish"),
        pytest.param("timer", lambda store: store.publish(message(timer_id="t")), id="timer"),
        pytest.param(
            "timer",
            lambda store: store.publish(message(timer_id="t", on_conflict="replace")),
            id="replacement",
        ),
        pytest.param("publish", lambda store: store.publish_batch([message()]), id="batch"),
    ],
)


class LostReplies:
    """Override `reply_lost`."""

    carried_out: ClassVar[bool]
    """Whether the server has carried out what it could not answer."""

    def reply_lost(self, backend: Any, what: What) -> AbstractAsyncContextManager[object]:
        """While this lasts, the next statement or script of this kind is sent and its answer never comes."""
        raise NotImplementedError

    @every_publish
    async def test_a_publish_whose_reply_was_lost_is_uncertain_and_was_sent_once(
        self, backend: Backend, what: What, verb: Callable[[Any], Awaitable[Any]]
    ) -> None:
        async with backend.opened() as store:
            async with self.reply_lost(backend, what):
                with pytest.raises(PublishUncertain):
                    await verb(store)

            assert len(await store.peek()) == (1 if self.carried_out else 0)
            assert await store.publish(message(b"and on")) is not None

    async def test_publishers_that_shared_a_commit_are_each_told_that_it_is_uncertain(
        self, backend: Backend
    ) -> None:
        async with backend.opened() as store:
            async with self.reply_lost(backend, "publish"):
                publishers = (store.publish(message()) for _ in range(5))
                results = await asyncio.gather(*publishers, return_exceptions=True)

            assert [type(result) for result in results] == [PublishUncertain] * 5
            assert len({id(result) for result in results}) == 5

    async def test_what_a_claim_took_whose_reply_was_lost_is_recalled(self, backend: Backend) -> None:
        async with backend.opened() as store:
            await store.publish_batch([message(b"a"), message(b"b"), message(b"c")])
            token = fresh_token()
            await claim(store, queue="other")
            async with self.reply_lost(backend, "claim"):
                with pytest.raises(StoreUnavailable):
                    await claim_all(store, limit=2, token=token)

            assert await store.recall([QUEUE], token) == (2 if self.carried_out else 0)
            again = await claim(store)
            assert [(delivery.body, delivery.deliveries) for delivery in again] == [
                (b"a", 1),
                (b"b", 1),
                (b"c", 1),
            ]

    async def test_a_settlement_repeated_after_a_lost_reply_is_unknown_and_not_lost(
        self, backend: Backend
    ) -> None:
        async with backend.opened() as store:
            await store.publish_batch([message(b"done"), message(b"retried"), message(b"later")])
            finished, retried, later = await claim(store)
            await store.extend([later], LEASE)
            batch = [Settlement(finished, Done()), Settlement(retried, Retry())]
            async with self.reply_lost(backend, "settle"):
                with pytest.raises(StoreUnavailable):
                    await store.settle(batch)

            for settlement in batch:
                settlement.repeated = True
            expected = WriteResult.UNKNOWN if self.carried_out else WriteResult.WRITTEN
            assert await store.settle(batch) == [expected] * 2
            assert await store.settle([Settlement(later, Done(), repeated=True)]) == [WriteResult.WRITTEN]
            assert await store.settle([Settlement(later, Done(), repeated=True)]) == [WriteResult.UNKNOWN]
            assert bodies(await claim(store)) == [b"retried"]
