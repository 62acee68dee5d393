"""Brokers on virtual time: each gets a stand-in for its store, and copies of its subscribers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

import anyio
from faststream.exceptions import SubscriberNotFound
from faststream.message import SourceType
from faststream.response import Response

from nightmail.broker._upstream import process_msg
from nightmail.broker.commands import OutboxPublishCommand, correlation_from
from nightmail.broker.option_checks import check_options
from nightmail.broker.option_help import lists_options
from nightmail.broker.options import TimerOptions
from nightmail.broker.producer import OutboxProducer
from nightmail.broker.received import Received
from nightmail.broker.subscriber import OutboxSubscriber
from nightmail.controls import WorkerReport
from nightmail.engine.presence import Presence
from nightmail.message import Message
from nightmail.testing.clock import ManualClock
from nightmail.testing.record import Record, as_delivered, observer_of
from nightmail.testing.shadow import Shadow, shadow_of
from nightmail.testing.store import Place, VirtualPipelines, VirtualStore
from nightmail.testing.timeline import Party, Timeline
from nightmail.testing.transactions import VirtualData

if TYPE_CHECKING:
    from nightmail.broker.broker import OutboxBroker
    from nightmail.broker.message import OutboxMessage


class Stage:
    """A set of brokers, their messages and their clock."""

    def __init__(self, brokers: tuple[OutboxBroker, ...], clock: ManualClock) -> None:
        self.timeline = Timeline(clock, self._parties)
        self.record = Record(brokers, self.timeline.note)
        self._brokers = brokers
        self._clock = clock
        self._data: dict[str, VirtualData] = {}
        self._stores: dict[OutboxBroker, VirtualStore] = {}
        self._presences: dict[OutboxBroker, Presence] = {}
        self._shadows: dict[OutboxSubscriber, tuple[Shadow, Party]] = {}
        self._answers: dict[int, Response] = {}

    def close(self) -> None:
        """Stop listening."""
        for data in self._data.values():
            data.close()

    def add(self, broker: OutboxBroker) -> VirtualStore:
        """A stand-in for this broker's store. Brokers with the same URL share their messages, as in production."""
        data = self._data.setdefault(_address(broker), VirtualData())

        async def published(message: Message, id_: int) -> None:
            await self.record.note(broker, message, id_, self._clock.now())

        kind = VirtualPipelines if hasattr(broker.store, "transaction") else VirtualStore
        store = self._stores[broker] = kind(
            data,
            self._clock,
            instead_of=broker.store.capabilities,
            on_publish=published,
            on_stop=partial(self._stop, data),
            present=partial(self._present, data),
        )
        return store

    def _stop(self, data: VirtualData, id_: int) -> None:
        for party in self._parties():
            if party.store.data is data and party.place is Place.QUEUE:
                party.worker.stop_message(id_)

    def _present(self, data: VirtualData) -> Iterator[WorkerReport]:
        parties = list(self._parties())
        for broker, presence in self._presences.items():
            store = self._stores[broker]
            if store.data is data:
                yield presence.report([party.worker for party in parties if party.store is store])

    @property
    def separate(self) -> list[OutboxBroker]:
        """One broker for each database."""
        return list({_address(broker): broker for broker in reversed(self._brokers)}.values())[::-1]

    @lists_options(TimerOptions)
    async def request(
        self,
        broker: OutboxBroker,
        message: Any,
        queue: str,
        timeout: float = 30.0,
        **options: Unpack[TimerOptions],
    ) -> OutboxMessage:
        """Publish, run, and return what the handler returned; raise what it raised."""
        check_options("request()", options, TimerOptions)
        if not any(queue in party.queues and party.place is Place.QUEUE for party in self._parties()):
            raise SubscriberNotFound(f"no subscriber of {queue!r}")
        options["correlation_id"] = correlation_from(options, broker.config.id_generator)
        producer = self.producer(broker)
        cmd = OutboxPublishCommand((message,), queue, options)
        stored = await broker._basic_publish(cmd, producer=producer)
        with anyio.fail_after(timeout):
            errors = await self.timeline.run()
        if errors:
            raise errors[0]
        return await self._answer(broker, self._answers.pop(stored, None), producer)

    def producer(self, broker: OutboxBroker) -> OutboxProducer:
        """A producer that only publishes, to the stand-in for the broker's store."""
        config = broker.config.broker_config
        producer = OutboxProducer(
            self._stores[broker],
            parser=broker._parser,
            decoder=broker._decoder,
            observer=observer_of(broker),
        )
        producer.connect(config.fd_config._serializer, config.broker_codec)
        return producer

    async def _answer(
        self, broker: OutboxBroker, response: Response | None, producer: OutboxProducer
    ) -> OutboxMessage:
        answer = Response(None) if response is None else response
        cmd = OutboxPublishCommand(
            (answer.body,),
            "answers",
            {"headers": answer.headers, "correlation_id": answer.correlation_id},
        )
        (message,) = await producer.encoded(cmd)
        received = Received(as_delivered(message, 0, self._clock.now()), broker.store)
        codec = broker.config.broker_codec
        seen = await process_msg(
            msg=received,
            middlewares=(make(received, context=broker.context) for make in broker.middlewares),
            parser=producer._parser,
            decoder=producer._decoder if codec is None else codec.decode,
            source_type=SourceType.RESPONSE,
        )
        return cast("OutboxMessage", seen)

    # ── subscribers ────────────────────────────────────────────────────────────────────────────────────────

    def _parties(self) -> Iterator[Party]:
        for broker in self._stores:
            for subscriber in broker.subscribers:
                if subscriber.running and subscriber.calls:
                    shadow, party = self._shadow(broker, cast("OutboxSubscriber", subscriber))
                    if shadow.running:
                        yield party

    def _shadow(self, broker: OutboxBroker, subscriber: OutboxSubscriber) -> tuple[Shadow, Party]:
        if subscriber not in self._shadows:
            store = self._stores[broker]
            shadow, worker = shadow_of(
                subscriber,
                store,
                presence=self._presences.setdefault(broker, Presence()),
                raised=self.timeline.note,
                answered=self._answers.__setitem__,
            )
            self._shadows[subscriber] = (
                shadow,
                Party(
                    worker,
                    store,
                    shadow.queues,
                    Place.DEAD_LETTERS if shadow.takes_dead_letters else Place.QUEUE,
                    name=f"{', '.join(shadow.queues)} {shadow.specification.call_name}",
                    at_once=shadow.batch or 1,
                ),
            )
        return self._shadows[subscriber]


def _address(broker: OutboxBroker) -> str:
    return ", ".join(broker.specification.url)
