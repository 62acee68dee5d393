"""The tables: when they are right, when they are not, and how they come to be."""

from __future__ import annotations

import asyncio

import pytest

from nightmail.errors import SchemaDrift, SchemaMissing, SchemaOutdated, StoreUnavailable
from nightmail.outcome import Dead, Done, Retry
from nightmail.store import Settlement
from nightmail.testing.conformance.build import HOUR, QUEUE, message
from tests.stores.shared.backend import SqlBackend
from tests.stores.support import EVERYTHING, claim, done, opened, settle


class Schema:
    """Override `drift`, with a parameter for each change that must be noticed, and what is said of it."""

    addition: str
    """What others may add without harm."""

    @pytest.fixture
    def drift(self) -> tuple[str, str]:
        raise NotImplementedError

    async def test_missing_tables_are_missed_by_every_verb(self, backend: SqlBackend) -> None:
        async with opened(backend.store(), migrate=False) as store:
            for verb in (
                store.check,
                store.stats,
                lambda: store.publish(message()),
                lambda: store.publish(message(timer_id="t")),
                lambda: claim(store),
                lambda: store.cancel(QUEUE, "t"),
            ):
                with pytest.raises(SchemaMissing):
                    await verb()
            await store.migrate()
            await store.check()

    async def test_older_tables_are_outdated_and_newer_ones_are_told_and_left_alone(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            await backend.run("update nightmail_meta set version = -1")
            with pytest.raises(SchemaOutdated) as raised:
                await store.check()
            assert (raised.value.found, raised.value.needed) == (-1, 1)

            await backend.run("update nightmail_meta set version = 99, serves = 99")
            await store.migrate()
            with pytest.raises(SchemaDrift, match="99"):
                await store.check()

    async def test_tables_that_differ_are_told_apart(
        self, backend: SqlBackend, drift: tuple[str, str]
    ) -> None:
        change, told = drift
        async with backend.opened() as store:
            for statement in change.split(";"):
                await backend.run(statement)

            with pytest.raises(SchemaDrift) as raised:
                await store.check()

            assert told in str(raised.value)

    async def test_what_others_added_without_harm_is_left_alone(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            for statement in self.addition.split(";"):
                await backend.run(statement)

            await store.check()

            await store.publish(message())
            await settle(store, await claim(store), Dead("rejected"))
            assert len(await store.dead(EVERYTHING)) == 1

    async def test_migrating_again_keeps_the_identity_of_the_tables(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            before = await backend.run("select * from nightmail_meta")
            await store.migrate()

            assert await backend.run("select * from nightmail_meta") == before

    async def test_processes_that_migrate_at_the_same_time_make_the_tables_once(
        self, backend: SqlBackend
    ) -> None:
        stores = [backend.store() for _ in range(5)]
        for store in stores:
            await store.open()

        await asyncio.gather(*(store.migrate() for store in stores))

        for store in stores:
            await store.check()
            await store.close()

    async def test_tables_with_another_prefix_are_other_tables(self, backend: SqlBackend) -> None:
        async with backend.opened() as plain, backend.opened(tables="jobs") as prefixed:
            stores = {b"plain": plain, b"prefixed": prefixed}
            for body, store in stores.items():
                await store.check()
                await store.publish(message(body, timer_id="t", ordering_key="k"))
            for body, store in stores.items():
                (delivery,) = await claim(store)
                assert delivery.body == body
                await store.settle([Settlement(delivery, Retry(HOUR))])
                assert await store.cancel(QUEUE, "t")

    async def test_what_is_done_is_kept_when_it_is_asked_for(self, backend: SqlBackend) -> None:
        async with backend.opened(keep_delivered=True) as store:
            await store.publish(
                message(b"settled", headers={"a": 1}, timer_id="t", ordering_key="k", priority=3)
            )
            await store.publish_batch([message(b"acked"), message(b"retried"), message(b"dead")])
            found = {delivery.body: delivery for delivery in await claim(store)}
            await store.settle(
                [
                    Settlement(found[b"settled"], Done()),
                    Settlement(found[b"retried"], Retry()),
                    Settlement(found[b"dead"], Dead("rejected")),
                ]
            )
            async with backend.transaction() as transaction:
                await store.ack([found[b"acked"]], transaction=transaction)

            columns = (
                "message_id, queue, timer_id, ordering_key, priority, headers, attempts, deliveries, body"
            )
            first, second = await backend.run(f"select {columns} from nightmail_delivered order by id")
            id_, *names, priority, headers, attempts, deliveries, body = first
            assert [name.decode() if isinstance(name, bytes) else name for name in names] == [QUEUE, "t", "k"]
            assert (id_, priority, headers) == (found[b"settled"].id, 3, '{"a":1}')
            assert (attempts, deliveries, body) == (0, 1, b"settled")
            assert second[-1] == b"acked"
            ((times,),) = await backend.run(
                "select count(*) from nightmail_delivered where published_at <= due_at and due_at <= delivered_at"
            )
            assert times == 2

    async def test_what_is_done_is_gone_unless_it_is_asked_for(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            await store.publish(message())
            await done(store, await claim(store))

            assert await backend.run("select count(*) from nightmail_delivered") == [(0,)]

    async def test_a_store_that_was_never_opened_says_so(self, backend: SqlBackend) -> None:
        with pytest.raises(StoreUnavailable, match="open"):
            await backend.store().publish(message())
