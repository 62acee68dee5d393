"""Users with no more rights than the documentation gives publishers, workers and operators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from nightmail.errors import NightmailError, NotAllowed
from nightmail.findings import Code
from nightmail.message import OnConflict
from nightmail.operations.doctor import Thresholds, diagnose
from nightmail.operations.status import Looks
from nightmail.operations.workers import clock_of
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.store import FullStore, Settlement
from nightmail.testing.conformance.build import (
    AT_ONCE,
    HOUR,
    LEASE,
    MICROSECOND,
    QUEUE,
    claim_letters,
    fresh_token,
    message,
)
from nightmail.testing.conformance.workers import FIRST, SECOND_ID, a_report
from tests.stores.shared.backend import SqlBackend
from tests.stores.support import EVERYTHING, claim, done, opened

NOTED = "select queue, pid from nightmail_consumers order by queue"
POLICIES: tuple[OnConflict, ...] = ("skip", "replace", "earliest", "latest")


@asynccontextmanager
async def store_of(backend: SqlBackend, *roles: str) -> AsyncIterator[tuple[FullStore, SqlBackend]]:
    """The store of a user who has these roles, over tables that another has made; and their way to connect."""
    async with backend.as_user(*roles) as theirs, opened(theirs.store(keep_delivered=True)) as store:
        # There was nothing to make, so migrating took no rights.
        await store.check()
        yield store, theirs


async def go_wrong(store: FullStore) -> None:
    """Messages that no worker takes, a key that is blocked, and a dead letter."""
    await store.publish_batch([message(ordering_key="k"), message(ordering_key="k")])
    (held,) = await claim(store)
    await store.settle([Settlement(held, Retry(HOUR))])
    await store.publish(message(queue="other"))
    (rejected,) = await claim(store, queue="other")
    await store.settle([Settlement(rejected, Dead("rejected"))])


async def found(store: FullStore) -> set[Code]:
    """What a doctor finds."""
    return {each.code for each in await diagnose(store, Thresholds(blocked=timedelta(0)))}


def text_of(value: str | bytes) -> str:
    """A name as its column has it: MySQL keeps bytes."""
    return value if isinstance(value, str) else value.decode()


class DocumentedRoles:
    """For stores on a server with users."""

    async def test_a_publisher_publishes_and_does_nothing_else(self, backend: SqlBackend) -> None:
        async with backend.opened() as store, store_of(backend, "publisher") as (publisher, theirs):
            await publisher.publish(message())
            await publisher.publish_batch([message(), message(ordering_key="k")])
            for policy in POLICIES:
                await publisher.publish(message(timer_id="t", on_conflict=policy))
            await publisher.publish(message(timer_id="u", dedup_for=HOUR))
            assert await publisher.reschedule(QUEUE, "t", HOUR)
            assert await publisher.cancel(QUEUE, "t")
            async with theirs.transaction() as transaction:
                await publisher.publish(message(), transaction=transaction)
                await publisher.publish(message(timer_id="v"), transaction=transaction)
            assert await publisher.cancel_all("others") == 0

            deliveries = await claim(store, limit=1)
            with pytest.raises(NightmailError, match="denied"):
                await publisher.settle([Settlement(deliveries[0], Dead("rejected"))])
            with pytest.raises(NightmailError, match="denied"):
                await publisher.sweep(older_than=HOUR, limit=1)
            assert (await store.stats())[QUEUE].ready == 5

    async def test_a_worker_works_and_publishes_nothing(self, backend: SqlBackend) -> None:
        async with backend.opened() as store, store_of(backend, "worker") as (worker, theirs):
            await store.publish_batch([message(b"%d" % number) for number in range(6)])
            with worker.listen([QUEUE]):
                deliveries = await claim(worker)
            assert set(await worker.extend(deliveries, LEASE)) == {WriteResult.WRITTEN}
            outcomes: tuple[Outcome, ...] = (Done(), Retry(), Postpone(HOUR), Dead("rejected"), Release())
            ended = [Settlement(*each) for each in zip(deliveries[:5], outcomes, strict=True)]
            assert set(await worker.settle(ended)) == {WriteResult.WRITTEN}
            async with theirs.transaction() as transaction:
                await worker.hold([deliveries[5]], transaction=transaction)
                await worker.ack([deliveries[5]], transaction=transaction)
            await worker.recall([QUEUE], fresh_token())
            assert await done(worker, await claim_letters(worker)) == [WriteResult.WRITTEN]

            with pytest.raises(NightmailError, match="denied"):
                await worker.publish(message())

    async def test_a_worker_whose_handlers_publish_has_both(self, backend: SqlBackend) -> None:
        async with backend.opened(), store_of(backend, "publisher", "worker") as (store, _):
            await store.publish(message(timer_id="t"))
            (running,) = await claim(store)
            await store.publish(message(timer_id="t", due=HOUR), own=running)
            assert await done(store, [running]) == [WriteResult.WRITTEN]

    async def test_an_operator_looks_and_cleans_up(self, backend: SqlBackend) -> None:
        async with (
            backend.opened(keep_delivered=True) as store,
            store_of(backend, "operator") as (operator, _),
        ):
            await store.publish_batch([message(), message(), message()])
            first, *others = await claim(store)
            await done(store, [first])
            await store.settle([Settlement(each, Dead("rejected")) for each in others])

            await operator.ping()
            await operator.peek()
            await operator.stats()
            letters = await operator.dead(EVERYTHING)
            assert len(await operator.redrive(letters[:1])) == 1
            assert await operator.purge(EVERYTHING, limit=10) == 1
            assert (await operator.sweep(older_than=AT_ONCE, limit=10)).delivered == 1
            assert await operator.cancel_all(QUEUE) == 1
            assert await operator.stats() == {}

    async def test_a_worker_reports_pauses_what_fails_and_probes_it(self, backend: SqlBackend) -> None:
        async with backend.opened() as store, store_of(backend, "worker") as (worker, _):
            await store.publish_batch([message(), message()])
            await worker.report(a_report())
            # A queue watch of its process sees what is there, although a worker may not read all that `why` does.
            looks = Looks(worker)
            for _ in range(2):
                (queue,) = [each for each in await looks.look() if each.queue == QUEUE]
                assert (queue.ready, queue.workers) == (2, 1)

            await worker.pause(QUEUE, by=FIRST, until=MICROSECOND, automatic=True)
            # Over by the time that it is claimed from.
            await store.pause(QUEUE, by="ann", until=MICROSECOND)

            assert len(await claim(worker)) == 1
            assert await worker.resume(QUEUE, automatic=True)
            assert len(await claim(worker)) == 1
            await worker.sign_off(FIRST)

    async def test_a_worker_notes_who_consumed_its_queues_last_only_when_it_leaves_them(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened(), store_of(backend, "worker") as (worker, _):
            for _ in range(3):
                await worker.report(a_report(queues=("mail", "refunds")))
                await worker.report(a_report(SECOND_ID, queues=("orders",)))
            assert await backend.run(NOTED) == []

            await worker.report(a_report(queues=("mail",)))
            await worker.sign_off(FIRST)

            assert [(text_of(queue), pid) for queue, pid in await backend.run(NOTED)] == [
                ("mail", 77),
                ("refunds", 77),
            ]
            assert set(await worker.last_consumers()) == {"mail", "refunds", "orders"}

    async def test_an_operator_pauses_stops_and_asks_why(self, backend: SqlBackend) -> None:
        async with backend.opened() as store, store_of(backend, "operator") as (operator, _):
            await store.publish_batch([message(), message()])
            await store.report(a_report())
            (running,) = await claim(store, limit=1)

            await operator.pause(QUEUE, by="ann")
            assert [pause.by for pause in await operator.pauses()] == ["ann"]
            assert await operator.request_stop(running.id, by="ann")
            assert (await operator.facts(running.id)).stop_requested_by == "ann"
            assert [each.id for each in await operator.leases()] == [running.id]
            assert [each.id for each in await operator.workers()] == [FIRST]
            assert QUEUE in await operator.last_consumers()
            assert await operator.resume(QUEUE)

    @pytest.mark.parametrize("role", ["worker", "operator"])
    async def test_a_worker_and_an_operator_find_what_is_wrong(self, backend: SqlBackend, role: str) -> None:
        async with backend.opened() as store, store_of(backend, role) as (theirs, _):
            await go_wrong(store)

            assert await found(theirs) >= {Code.NO_WORKER, Code.KEY_BLOCKED, Code.DEAD_LETTERS_WAITING}

    async def test_a_publisher_knows_the_stores_clock_and_is_no_doctor(self, backend: SqlBackend) -> None:
        async with backend.opened() as store, store_of(backend, "publisher") as (publisher, _):
            assert await clock_of(store) <= await clock_of(publisher)

            with pytest.raises(NotAllowed, match=r"denied .*nightmail_"):
                await found(publisher)
