"""A transaction of synchronous code, in everything it may live in, and what cannot be one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import String, create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from nightmail.errors import CannotJoin, NightmailError, NotInTransaction, OtherDatabase, TimerExists
from nightmail.message import FURTHEST_DUE
from nightmail.store import Blocking, FullStore
from nightmail.testing.conformance.blocking import at_once
from nightmail.testing.conformance.build import AT_ONCE, HOUR, MICROSECOND, QUEUE, bodies, message
from tests.stores.shared.backend import BeginBlocking, ChangedMyMind, SqlBackend
from tests.stores.support import claim, opened


class _Base(DeclarativeBase):
    pass


class _Note(_Base):
    __tablename__ = "orm_notes"

    value: Mapped[str] = mapped_column(String(50), primary_key=True)


def published(store: FullStore, session: Any) -> None:
    """Publish a message in the transaction of this session."""
    at_once(store.publish(message(b"published"), transaction=Blocking(session)))


async def refused(
    backend: SqlBackend, session: Any, error: type[NightmailError], match: str | None = None
) -> None:
    """A store refuses this session, whether it was opened or not, and nothing is stored."""
    async with backend.opened() as looking:
        for store in (looking, backend.store()):
            with pytest.raises(error, match=match):
                published(store, session)
        assert await looking.peek() == []


class BlockingTransactions:
    """Override `begin`, with a parameter for each kind of transaction."""

    @pytest.fixture
    def begin(self) -> BeginBlocking:
        raise NotImplementedError

    @pytest.fixture(params=["opened", "never opened"])
    async def stores(self, request: pytest.FixtureRequest, backend: SqlBackend) -> Any:
        """The store that synchronous code has, and one to look with."""
        async with backend.opened() as looking:
            yield (looking if request.param == "opened" else backend.store()), looking

    # -------------------------------------------------------------------------------- what is joined

    async def test_what_synchronous_code_published_commits_with_its_transaction(
        self, backend: SqlBackend, begin: BeginBlocking, stores: tuple[FullStore, FullStore]
    ) -> None:
        store, looking = stores
        with begin(backend.url) as session:
            own = Blocking(session)
            id_ = at_once(store.publish(message(b"one"), transaction=own))
            ids = at_once(store.publish_batch([message(b"two"), message(b"three")], transaction=own))
            assert at_once(store.publish(message(b"four", timer_id="t"), transaction=own)) is not None
            assert at_once(store.publish(message(b"five", timer_id="t"), transaction=own)) is None
            assert await claim(looking) == []

        deliveries = await claim(looking)
        assert bodies(deliveries) == [b"one", b"two", b"three", b"four"]
        assert [delivery.id for delivery in deliveries[:3]] == [id_, *ids]

    async def test_peek_shows_synchronous_code_what_its_transaction_published(
        self, backend: SqlBackend, begin: BeginBlocking, stores: tuple[FullStore, FullStore]
    ) -> None:
        store, looking = stores
        with begin(backend.url) as session:
            at_once(store.publish(message(b"own"), transaction=Blocking(session)))

            found = at_once(store.peek(transaction=Blocking(session)))
            assert await looking.peek() == []

        assert bodies(found) == [b"own"]

    async def test_what_synchronous_code_did_rolls_back_with_its_transaction(
        self, backend: SqlBackend, begin: BeginBlocking, stores: tuple[FullStore, FullStore]
    ) -> None:
        store, looking = stores
        await looking.publish(message(b"there", timer_id="there"))
        with pytest.raises(ChangedMyMind), begin(backend.url) as session:
            own = Blocking(session)
            at_once(store.publish(message(), transaction=own))
            at_once(store.publish(message(timer_id="t", on_conflict="replace"), transaction=own))
            at_once(store.publish(message(timer_id="there", on_conflict="replace"), transaction=own))
            assert at_once(store.cancel(QUEUE, "there", transaction=own))
            raise ChangedMyMind

        assert bodies(await claim(looking)) == [b"there"]
        assert await looking.publish(message(timer_id="t")) is not None

    async def test_timers_are_replaced_moved_and_cancelled_in_synchronous_code(
        self, backend: SqlBackend, begin: BeginBlocking, stores: tuple[FullStore, FullStore]
    ) -> None:
        store, looking = stores
        for name in ("replaced", "moved", "cancelled"):
            await looking.publish(message(b"old", timer_id=name, due=HOUR * 2))

        with begin(backend.url) as session:
            own = Blocking(session)
            new = message(b"new", timer_id="replaced", due=HOUR, on_conflict="replace")
            at_once(store.publish(new, transaction=own))
            assert at_once(store.reschedule(QUEUE, "moved", HOUR * 3, transaction=own)) is True
            assert at_once(store.reschedule(QUEUE, "unknown", HOUR, transaction=own)) is False
            assert at_once(store.cancel(QUEUE, "cancelled", transaction=own)) is True
            assert at_once(store.cancel(QUEUE, "cancelled", transaction=own)) is False

        assert [(found.timer_id, found.body) for found in await looking.peek()] == [
            ("replaced", b"new"),
            ("moved", b"old"),
        ]
        with begin(backend.url) as session:
            assert at_once(store.cancel_all(QUEUE, transaction=Blocking(session))) == 2
        assert await looking.peek() == []

    async def test_every_value_arrives_as_it_was_given(
        self, backend: SqlBackend, begin: BeginBlocking
    ) -> None:
        due = datetime(2040, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
        body = b"100% \x00\xff %s %(queue)s $1 '\\"
        headers = {"%s": "%(x)s", "quoted": "'\"\\", "letters": "żółć", "dollar": "$1"}
        async with backend.opened() as store:
            with begin(backend.url) as session:
                for timer_id, policy in (
                    (None, "skip"),
                    ("100% '$1' %s", "skip"),
                    ("100% '$1' %s", "replace"),
                ):
                    odd = message(
                        body,
                        queue="50% \\",
                        headers=headers,
                        due=due,
                        priority=9,
                        ordering_key="%",
                        expires_in=timedelta(days=9999, microseconds=1),
                        timer_id=timer_id,
                        on_conflict=policy,  # type: ignore[arg-type]  # One of the two.
                    )
                    at_once(store.publish(odd, transaction=Blocking(session)))

            first, second = await store.peek()
            assert (first.timer_id, second.timer_id) == (None, "100% '$1' %s")
            for found in (first, second):
                assert (found.queue, found.body, found.headers) == ("50% \\", body, headers)
                assert (found.due_at, found.priority, found.ordering_key) == (due, 9, "%")
                assert found.expires_at == found.published_at + timedelta(days=9999, microseconds=1)

    async def test_every_delay_can_be_given(self, backend: SqlBackend, begin: BeginBlocking) -> None:
        delays = (FURTHEST_DUE, timedelta.min, AT_ONCE, MICROSECOND)
        async with backend.opened() as store:
            with begin(backend.url) as session:
                own = Blocking(session)
                for number, delay in enumerate(delays):
                    at_once(store.publish(message(due=delay), transaction=own))
                    at_once(store.publish(message(due=delay, timer_id=str(number)), transaction=own))

            assert len(await store.peek()) == 2 * len(delays)

    async def test_a_conflict_leaves_the_transaction_of_synchronous_code_usable(
        self, backend: SqlBackend, begin: BeginBlocking, stores: tuple[FullStore, FullStore]
    ) -> None:
        store, looking = stores
        await looking.publish(message(b"there", timer_id="t", due=HOUR))
        with begin(backend.url) as session:
            own = Blocking(session)
            at_once(store.publish(message(b"before"), transaction=own))
            for _ in range(2):
                assert at_once(store.publish(message(timer_id="t"), transaction=own)) is None
                with pytest.raises(TimerExists):
                    at_once(store.publish(message(timer_id="t", on_conflict="raise"), transaction=own))
            at_once(store.publish(message(b"after"), transaction=own))

        assert bodies(await claim(looking)) == [b"before", b"after"]

    async def test_a_session_is_neither_flushed_nor_ended(self, backend: SqlBackend) -> None:
        engine = backend.sync_engine()
        async with backend.opened() as store:
            _Base.metadata.create_all(engine)
            with Session(engine) as session:
                note = _Note(value="mine")
                session.add(note)
                at_once(store.publish(message(b"dropped"), transaction=Blocking(session)))
                assert note in session.new
                assert session.in_transaction()
                session.rollback()

                session.add(_Note(value="kept"))
                at_once(store.publish(message(b"kept"), transaction=Blocking(session)))
                assert await store.peek() == []
                session.commit()

            assert bodies(await store.peek()) == [b"kept"]
            with Session(engine) as session:
                assert [found.value for found in session.query(_Note)] == ["kept"]

    async def test_a_connection_that_was_not_begun_is_in_a_transaction_once_synchronous_code_uses_it(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            with backend.sync_engine().connect() as connection:
                at_once(store.publish(message(b"dropped"), transaction=Blocking(connection)))
                connection.rollback()
                at_once(store.publish(message(b"kept"), transaction=Blocking(connection)))
                connection.commit()

            assert bodies(await store.peek()) == [b"kept"]

    # ------------------------------------------------------------------------------- what is refused

    async def test_a_synchronous_connection_outside_a_transaction_is_refused(
        self, backend: SqlBackend
    ) -> None:
        with backend.sync_outside() as connection:
            await refused(backend, connection, NotInTransaction, "(?i)begin|transaction")
        # Closed.
        await refused(backend, connection, NotInTransaction)

    @pytest.mark.parametrize("where", ["engine", "connection"])
    async def test_autocommit_is_refused_in_synchronous_code(self, backend: SqlBackend, where: str) -> None:
        options = {"isolation_level": "AUTOCOMMIT"}
        engine = backend.sync_engine(**(options if where == "engine" else {}))
        async with backend.opened():
            pass
        with engine.connect() as connection:
            if where == "connection":
                connection = connection.execution_options(**options)
            await refused(backend, connection, NotInTransaction, "AUTOCOMMIT|by itself")
        await refused(backend, connection, NotInTransaction, "closed")
        with Session(engine) as session:
            if where == "connection":
                session.connection(execution_options=options)
            await refused(backend, session, NotInTransaction, "AUTOCOMMIT|by itself")

    async def test_what_is_no_transaction_of_synchronous_code_is_refused(self, backend: SqlBackend) -> None:
        engine = backend.engine()
        async with AsyncSession(engine) as session:
            for wrong in (backend.sync_engine(), engine, session, object(), "a transaction", None):
                await refused(backend, wrong, CannotJoin)
        for connect, _ in backend.outside.values():
            async with connect(backend.url) as connection:
                await refused(backend, connection, CannotJoin)

    async def test_a_synchronous_session_of_another_kind_of_database_is_refused(
        self, backend: SqlBackend
    ) -> None:
        with Session(create_engine("sqlite://")) as session:
            await refused(backend, session, OtherDatabase, "sqlite|another database")

    async def test_a_synchronous_session_by_itself_is_refused_with_a_word_on_what_to_use(
        self, backend: SqlBackend, begin: BeginBlocking
    ) -> None:
        async with backend.opened() as store:
            with begin(backend.url) as session, pytest.raises(CannotJoin, match="SyncPublisher"):
                await store.publish(message(), transaction=session)
            assert await store.peek() == []

    # ---------------------------------------------------------------------------- whose tables they are

    async def test_a_synchronous_transaction_in_a_database_without_our_tables_is_refused(
        self, backend: SqlBackend, begin: BeginBlocking
    ) -> None:
        with backend.elsewhere() as elsewhere:
            async with backend.opened() as store:
                with begin(elsewhere.url) as session:
                    for _ in range(2):
                        # Refused, and yet the transaction goes on: the second time is no other than the first.
                        with pytest.raises(OtherDatabase):
                            published(store, session)

    async def test_a_synchronous_transaction_in_another_database_with_such_tables_is_refused_and_goes_on(
        self, backend: SqlBackend, begin: BeginBlocking
    ) -> None:
        with backend.elsewhere() as elsewhere:
            async with backend.opened() as store, elsewhere.opened() as other:
                with begin(elsewhere.url) as session:
                    own = Blocking(session)
                    for verb in (
                        store.publish(message(), transaction=own),
                        store.publish(message(timer_id="t"), transaction=own),
                        store.publish(message(timer_id="t", on_conflict="replace"), transaction=own),
                        store.publish_batch([message()], transaction=own),
                        store.cancel(QUEUE, "t", transaction=own),
                        store.cancel_all(QUEUE, transaction=own),
                        store.reschedule(QUEUE, "t", HOUR, transaction=own),
                    ):
                        with pytest.raises(OtherDatabase):
                            at_once(verb)
                    at_once(elsewhere.store().publish(message(b"theirs"), transaction=own))

                assert bodies(await other.peek()) == [b"theirs"]
                assert await store.peek() == []

    async def test_a_store_that_was_never_opened_refuses_where_there_are_no_tables(
        self, backend: SqlBackend, begin: BeginBlocking
    ) -> None:
        with begin(backend.url) as session:
            for _ in range(2):
                with pytest.raises(NightmailError) as raised:
                    published(backend.store(), session)
                assert isinstance(raised.value, backend.no_tables)

    async def test_a_store_that_was_closed_still_knows_its_tables(self, backend: SqlBackend) -> None:
        with backend.elsewhere() as elsewhere:
            async with backend.opened() as store, elsewhere.opened():
                pass
            with Session(elsewhere.sync_engine()) as session, pytest.raises(OtherDatabase):
                published(store, session)
            with Session(backend.sync_engine()) as session, session.begin():
                published(store, session)
            async with backend.opened() as looking:
                assert bodies(await looking.peek()) == [b"published"]


class LearningWhichTablesAreOurs:
    """For stores that can find out on the connection of synchronous code."""

    async def test_a_store_that_was_opened_and_asked_nothing_yet_finds_out_which_tables_are_its_own(
        self, backend: SqlBackend
    ) -> None:
        with backend.elsewhere() as elsewhere:
            async with backend.opened(), elsewhere.opened():
                pass
            async with opened(backend.store(), migrate=False) as store:
                with Session(elsewhere.sync_engine()) as session, pytest.raises(OtherDatabase):
                    published(store, session)
                with Session(backend.sync_engine()) as session, session.begin():
                    published(store, session)

                assert bodies(await claim(store)) == [b"published"]

    async def test_tables_that_were_made_again_are_recognised_in_synchronous_code(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            await backend.run(backend.new_identity)

            with Session(backend.sync_engine()) as session, session.begin():
                published(store, session)

            assert bodies(await claim(store)) == [b"published"]
