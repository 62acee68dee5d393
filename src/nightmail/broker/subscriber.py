"""A subscriber is a worker whose handler is FastStream's own pipeline.

Two parts of it are left out, because the worker knows better: its acknowledgements (replaced by `acknowledging`) and
its count of messages in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from faststream.exceptions import HandlerException, StopConsume
from faststream.middlewares import AckPolicy

from nightmail.broker._upstream import (
    AsyncCallable,
    BatchCodecProto,
    CallsCollection,
    CustomCallable,
    FakePublisher,
    process_msg,
    resolve_ack_policy,
    restore_direct_calls,
)
from nightmail.broker.acknowledging import DONE, conclude, fail
from nightmail.broker.applications import Shown, refuse_sessions
from nightmail.broker.call_assertions import SubscriberWithAssertions
from nightmail.broker.commands import OutboxPublishCommand
from nightmail.broker.config import OutboxBrokerConfig, OutboxSubscriberConfig
from nightmail.broker.decisions import is_answer
from nightmail.broker.def_handlers import (
    as_written,
    blocking_dependencies,
    blocks,
    in_own_thread,
    shared_threads,
    warn_of_shared_threads,
)
from nightmail.broker.logging import AccessLog, log_of
from nightmail.broker.message import OutboxMessage
from nightmail.broker.options import WorkerOptions, worker_settings
from nightmail.broker.parser import decode_batch, decode_body, marking, parse_batch, parse_delivery
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.broker.return_values import relaying_middlewares
from nightmail.broker.sessions import RecordHandlerError, SessionFactories, current_session, with_session
from nightmail.broker.specification import OutboxSubscriberSpecification
from nightmail.broker.taking import take_one
from nightmail.engine.attempt import Attempt, Batched
from nightmail.engine.current import results_here, was_interrupted
from nightmail.engine.dead_letters import DeadLetters
from nightmail.engine.result import Result
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.shutdown import undisturbed
from nightmail.engine.worker import Worker
from nightmail.errors import Undecodable
from nightmail.message import Delivery
from nightmail.outcome import Dead, Reason, Release
from nightmail.store import FullStore, Source

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from faststream.response import PublishCommand

    from nightmail.broker._upstream import BrokerMiddleware, PublisherMiddleware


class OutboxSubscriber(SubscriberWithAssertions):
    """Delivers the messages of its queues to its handlers."""

    def __init__(
        self,
        config: OutboxSubscriberConfig,
        specification: OutboxSubscriberSpecification,
        calls: CallsCollection[Received | ReceivedBatch],
    ) -> None:
        config.parser = parse_delivery
        config.decoder = decode_body
        super().__init__(config, specification, calls)
        self._config = config
        self._call_decorators = (in_own_thread,)
        self.settings = WorkerSettings()
        self._store: FullStore
        self._make_session: SessionFactories | None
        self._worker: Worker | None = None
        self._running: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues it serves, with the prefixes of its routers."""
        return tuple(f"{self._outer_config.prefix}{queue}" for queue in self._config.queues)

    @property
    def is_healthy(self) -> bool:
        """Whether its worker runs and the store answers it; a subscriber without handlers has none to run."""
        if not self.calls:
            return True
        return (
            self._running is not None
            and not self._running.done()
            and not cast("Worker", self._worker).is_failing
        )

    async def start(self) -> None:
        """Start delivering."""
        if self.running:
            return
        resolve_ack_policy(self, self._config.ack_policy)
        if self._outer_config.fd_config.get_dependent:
            for call in self.calls:
                refuse_sessions(call.handler._declared_call)
        await super().start()
        # FastStream's lock counts the messages in flight, for its own `stop`: the worker already knows them.
        self.lock = nullcontext()
        self._post_start()
        if self.calls:
            self._worker = self._new_worker()
            warn_of_shared_threads(blocking_dependencies(self.calls), self.settings.max_workers, self._log)
            self._running = asyncio.create_task(
                self._worker.run(), name=f"nightmail {', '.join(self.queues)}"
            )
            self._running.add_done_callback(self._report_death)
            # Its first step: a stop that came before it would not be heard.
            await asyncio.sleep(0)

    def _build_fastdepends_model(self) -> None:
        super()._build_fastdepends_model()
        restore_direct_calls(self, as_written)

    @property
    def _broker_config(self) -> OutboxBrokerConfig:
        return cast("OutboxBrokerConfig", self._outer_config)

    @property
    def _around_middlewares(self) -> Sequence[BrokerMiddleware[Any]]:
        log, logged, unlogged = self._around
        return logged if log is not None and log.is_wanted else unlogged

    @cached_property
    def _around(
        self,
    ) -> tuple[AccessLog | None, Sequence[BrokerMiddleware[Any]], Sequence[BrokerMiddleware[Any]]]:
        """The access log, and what is around a message with it and without it."""
        logger = self._outer_config.logger
        contexts = self._broker_config.application_contexts
        unlogged: Sequence[BrokerMiddleware[Any]] = (Shown(contexts),) if contexts else ()
        if log_of(logger) is None:
            return None, unlogged, unlogged
        log = AccessLog(logger, self._broker_config.access_log_level)
        return log, (log, *unlogged), unlogged

    @property
    def takes_dead_letters(self) -> bool:
        """Whether it handles the dead letters of its queues."""
        return self._config.dead_letters

    @property
    def _broker_middlewares(self) -> Sequence[BrokerMiddleware[Any]]:
        outermost, innermost = self._own_middlewares
        others = super()._broker_middlewares
        return (*outermost, *others, *innermost) if outermost or innermost else others

    # Cached: this is asked for with every message, and the configuration answers through all its routers.
    @cached_property
    def _own_middlewares(self) -> tuple[Sequence[BrokerMiddleware[Any]], Sequence[BrokerMiddleware[Any]]]:
        publishers = [publisher for call in self.calls for publisher in call.handler._publishers]
        outermost, innermost = relaying_middlewares(
            publishers, propagate_headers=self._config.propagate_headers
        )
        if self._broker_config.session_factories is not None:
            innermost = (RecordHandlerError, *innermost)
        return outermost, innermost

    def _new_worker(self) -> Worker:
        broker = self._broker_config
        self.settings = self._worker_settings()
        # Looked up once: through its routers' configurations it takes microseconds, for every message.
        self._store, self._make_session = broker.store, broker.session_factories
        # Looked up again for each worker: a router may have moved to a broker with other sessions and another log.
        vars(self).pop("_around", None)
        vars(self).pop("_own_middlewares", None)
        return Worker(
            self._source,
            self._deliver
            if self._config.max_batch is None
            else Batched(self._deliver_batch, self._config.max_batch),
            queues=self.queues,
            settings=self.settings,
            observer=broker.observer,
            quarantine=broker.quarantine,
            presence=broker.presence,
            idle_looks=broker.idle_looks,
            about={
                "name": self.specification.call_name,
                "handlers": self._where_handlers_run,
                "blocking_dependencies": blocking_dependencies(self.calls),
                "shared_threads": shared_threads(),
            },
        )

    @property
    def _where_handlers_run(self) -> str:
        if not any(blocks(call.handler._declared_call) for call in self.calls):
            return "event loop"
        return self._config.run

    def _worker_settings(self) -> WorkerSettings:
        merged: dict[str, Any] = {**self._broker_config.worker_options, **self._config.worker_options}
        settings = worker_settings(cast("WorkerOptions", merged), self._outer_config.graceful_timeout)
        return replace(settings, isolated=self._config.run == "process")

    @property
    def _source(self) -> Source:
        store = self._broker_config.store
        return DeadLetters(store) if self._config.dead_letters else store

    async def stop(self) -> None:
        """Claim no more, finish what runs, hand back the rest."""
        self.running = False
        if (worker := self._worker) is not None:
            await worker.stop()
            if self._worker is not worker:
                return  # It was started again meanwhile.
            self._worker = None
        await super().stop()

    def hurry(self) -> None:
        """Stop without a grace period."""
        if self._worker is not None:
            self._worker.hurry()

    def _report_death(self, running: asyncio.Task[None]) -> None:
        error = None if running.cancelled() else running.exception()
        if isinstance(error, Exception):
            self._log(logging.CRITICAL, f"the worker of {', '.join(self.queues)} died", exc_info=error)

    async def _deliver(self, delivery: Delivery) -> Result:
        """Run one delivery through FastStream, and set its result."""
        result = results_here()[delivery]
        received = Received(delivery, self._store, result)
        if self._make_session is None:
            await self._process(received)
        else:
            await with_session(self._make_session, received, self._process, self.ack_policy)
        return result

    async def _deliver_batch(self, batch: Sequence[Delivery]) -> dict[Delivery, Result]:
        """Run several through FastStream as one message, and set the result of each."""
        results, store = results_here(), self._store
        received = ReceivedBatch([Received(each, store, results[each]) for each in batch], store)
        if self._make_session is None:
            await self._process_batch(received)
        else:
            await with_session(self._make_session, received, self._process_batch, self.ack_policy)
        return results

    async def _process_batch(self, batch: ReceivedBatch) -> None:
        try:
            await self._process(batch)
        finally:
            batch.share()

    async def _process(self, received: Received | ReceivedBatch) -> None:
        """Run it through FastStream, and note how it ended."""
        try:
            response = await self.process_message(received)
        except (StopConsume, SystemExit) as ending:
            fail(received, None, self.ack_policy)
            # A task of its own: stopping waits for running handlers, and we are inside one.
            self._stopping = asyncio.create_task(self.stop())
            if isinstance(ending, SystemExit) and (app := self._outer_config.context.get("app")):
                app.exit()
        except Exception as error:
            if not isinstance(error, HandlerException) and await was_interrupted():
                # It timed out, or the shutdown came, whatever a driver or a task group raised instead: no policy may
                # delete it or give it up for that.
                raise asyncio.CancelledError from error
            await conclude(received, error, self.ack_policy, self._described)
        else:
            if response.body is not None:
                await conclude(received, response.body, self.ack_policy, self._described)
            elif self.ack_policy is not AckPolicy.MANUAL:
                received.result.decide(DONE)

    def _described(self, error: Exception) -> str | None:
        # `Undecodable` is described by what the decoder raised.
        inner = error.__cause__ if isinstance(error, Undecodable) else None
        return self.settings.described(inner or error)

    def _get_parser_and_decoder(
        self, item_parser: CustomCallable | None = None, item_decoder: CustomCallable | None = None
    ) -> tuple[AsyncCallable, AsyncCallable]:
        parser, decoder = self._for_one(item_parser, item_decoder)
        if self._config.max_batch is None:
            return parser, decoder
        codec: Any = self._call_options.codec or self._outer_config.broker_codec
        if codec and not isinstance(codec, BatchCodecProto):
            raise ValueError(
                f"a subscriber with batch=True needs a codec that implements BatchCodecProto: {type(codec).__name__} "
                "has no encode_batch and decode_batch"
            )
        return (
            partial(parse_batch, parse=parser, describe=self._described),
            partial(
                decode_batch,
                decode=decoder,
                describe=self._described,
                together=codec.decode_batch if codec else None,
            ),
        )

    def _for_one(
        self, item_parser: CustomCallable | None = None, item_decoder: CustomCallable | None = None
    ) -> tuple[AsyncCallable, AsyncCallable]:
        parser, decoder = super()._get_parser_and_decoder(item_parser, item_decoder)
        return marking(parser), marking(decoder)

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Iterable[FakePublisher]:
        return (_ReplyPublisher(producer=self._outer_config.producer, queue=message.reply_to),)

    async def get_one(self, *, timeout: float = 5.0) -> OutboxMessage | None:  # type: ignore[override]
        """Take the next message by hand, waiting for one as long as `timeout`; `None` if none came.

        A decision is written when you make it. The lease is not renewed: call `extend` if you take longer.
        """
        if self.calls:
            raise RuntimeError(
                "this subscriber has a handler, which gets its messages: use another one to take them"
            )
        source, settings = self._source, self._worker_settings()
        attempt = Attempt(source, self._deliver, settings, self._broker_config.observer)
        store = self._broker_config.store
        taken = await take_one(
            source,
            store,
            self.queues,
            attempt,
            settings,
            timeout,
            self._broker_config.observer,
            self._broker_config.presence,
        )
        if taken is None:
            return None
        context = self._outer_config.context
        parser, decoder = self._for_one()
        try:
            return cast(
                "OutboxMessage",
                await process_msg(
                    msg=taken,
                    middlewares=(make(taken, context=context) for make in self._broker_middlewares),
                    parser=parser,
                    decoder=decoder,
                ),
            )
        except BaseException as error:
            # The caller never got it, so no decision will come.
            if isinstance(error, Undecodable):
                taken.result.decide(Dead(Reason.UNDECODABLE, self._described(error), ran=False))
            elif isinstance(error, Exception):
                taken.result.void(error)
            else:
                taken.result.decide(Release())
            settling = asyncio.create_task(taken.settle())
            await undisturbed(settling)
            settling.result()
            raise

    async def __aiter__(self) -> AsyncIterator[OutboxMessage]:  # type: ignore[override]
        """Take one message after the other, without end."""
        while True:
            message = await self.get_one(timeout=self._broker_config.store.look_interval.total_seconds())
            if message is not None:
                yield message

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """What the access log says about a message."""
        if message is None:
            return {"queue": ",".join(self.queues), "message_id": ""}
        received = message.raw_message
        queue = received.delivery.queue if isinstance(received, Received) else ",".join(self.queues)
        return {"queue": queue, "message_id": message.message_id}


class _ReplyPublisher(FakePublisher):
    """Publishes a handler's return value to the queue that the message asked for."""

    __slots__ = ("_queue",)

    def __init__(self, *, producer: Any, queue: str) -> None:
        super().__init__(producer=producer)
        self._queue = queue

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> Any:
        if is_answer(cmd.body):
            return None  # An outcome is for the worker only, not to be published.
        return await super()._publish(cmd, _extra_middlewares=_extra_middlewares)

    def patch_command(self, cmd: PublishCommand) -> OutboxPublishCommand:
        command = OutboxPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination = self._queue
        command.join(current_session())
        return command
