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
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from faststream.exceptions import (
    AckMessage,
    HandlerException,
    StopConsume,
)
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
from nightmail.broker.acknowledging import failed, obey, succeeded
from nightmail.broker.applications import Shown, refuse_sessions
from nightmail.broker.call_assertions import SubscriberWithAssertions
from nightmail.broker.commands import OutboxPublishCommand
from nightmail.broker.config import OutboxBrokerConfig, OutboxSubscriberConfig
from nightmail.broker.def_handlers import as_written, in_own_thread, warn_of_shared_threads
from nightmail.broker.logging import AccessLog
from nightmail.broker.message import OutboxMessage
from nightmail.broker.options import WorkerOptions, worker_settings
from nightmail.broker.parser import decode_batch, decode_body, marking, parse_batch, parse_delivery
from nightmail.broker.received import (
    Nacked,
    Promised,
    Received,
    ReceivedBatch,
    is_answer,
    senseless,
    verdict_in,
)
from nightmail.broker.return_values import relaying_middlewares
from nightmail.broker.sessions import (
    AnyReceived,
    RecordHandlerError,
    SessionFactories,
    current_session,
    with_session,
)
from nightmail.broker.specification import OutboxSubscriberSpecification
from nightmail.broker.taking import settle, take_one
from nightmail.describing import describe
from nightmail.engine.attempt import Attempt, Batched, decide, is_own
from nightmail.engine.current import was_interrupted
from nightmail.engine.dead_letters import DeadLetters
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.shutdown import undisturbed
from nightmail.engine.worker import Worker
from nightmail.errors import HandlerDied, LeaseLost, NoVerdict, Undecodable
from nightmail.message import Delivery
from nightmail.outcome import OUTCOMES, Dead, Done, Outcome, Postpone, Reason, Release, Retry
from nightmail.store import FullStore, Settlement, Source

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
            warn_of_shared_threads(self.calls, self.settings.max_workers, self._log)
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

    @cached_property
    def _around_middlewares(self) -> Sequence[BrokerMiddleware[Any]]:
        around: list[BrokerMiddleware[Any]] = [AccessLog(self._outer_config.logger)]
        if contexts := self._broker_config.application_contexts:
            around.append(Shown(contexts))
        return around

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
        vars(self).pop("_around_middlewares", None)
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
        )

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

    async def _deliver(self, delivery: Delivery) -> Outcome | None:
        """Run one delivery through FastStream, and read the verdict it left."""
        received = Received(delivery, self._store)
        try:
            if self._make_session is None:
                error = await self._process(received)
            else:
                error = await self._handle(received)
        except asyncio.CancelledError:
            if not isinstance(received.verdict, OUTCOMES):
                raise
            return received.verdict  # It was given before the handler was cancelled.
        return self._outcome(received, error)

    async def _deliver_batch(self, batch: Sequence[Delivery]) -> Sequence[Outcome | Exception | None]:
        """Run several through FastStream as one message, and read the verdict on each."""
        store = self._store
        received = ReceivedBatch([Received(delivery, store) for delivery in batch], store)
        try:
            error = await self._handle(received)
        except asyncio.CancelledError:
            verdicts = [received.verdict, *(item.verdict for item in received.items)]
            if not any(isinstance(verdict, OUTCOMES) for verdict in verdicts):
                raise
            error = TimeoutError("the handler was cancelled before it had a verdict on this one")
        own = {item for item in received.items if isinstance(item.verdict, OUTCOMES)}
        if not isinstance(error, LeaseLost):
            try:
                received.settle()
            except Exception as senseless:  # noqa: BLE001 - whatever is wrong with what it returned
                error = error or senseless
        return [
            # A message's own verdict stands, whatever happened to the others.
            self._answer(item, item.failure if item in own else error, batch)
            for item in received.items
        ]

    def _answer(
        self, item: Received, error: Exception | None, batch: Sequence[Delivery]
    ) -> Outcome | Exception | None:
        if error is None and item.failure is None and type(item.verdict) is Done:
            return None
        cause = item.failure or error
        if (
            isinstance(cause, LeaseLost)
            and not is_own(cause, item.delivery)
            and any(is_own(cause, each) for each in batch)
        ):
            # The batch was all or nothing: this one did not fail and may be redelivered at once.
            return Release()
        try:
            return self._outcome(item, item.failure or error)
        except Exception as failure:  # noqa: BLE001 - the worker's retry policy decides what it means
            return failure

    async def _handle(self, received: AnyReceived) -> Exception | None:
        if self._make_session is None:
            return await self._process(received)
        return await with_session(
            self._make_session, received, self._process, failing_is_done=self.ack_policy is AckPolicy.ACK
        )

    async def _process(self, received: Received | ReceivedBatch) -> Exception | None:
        """Run it through FastStream, and judge it by the policy; what went wrong, if anything did."""
        try:
            response = await self.process_message(received)
        except HandlerException as raised:
            return await self._obey(received, raised)
        except (StopConsume, SystemExit) as ending:
            failed(received, self.ack_policy)
            self._stop_soon()
            if isinstance(ending, SystemExit) and (app := self._outer_config.context.get("app")):
                app.exit()
        except Exception as error:
            if await was_interrupted():
                # It timed out, or the shutdown came, whatever a driver or a task group raised instead: no policy may
                # delete it or give it up for that.
                raise asyncio.CancelledError from error
            failed(received, self.ack_policy)
            return error
        else:
            if response.body is not None:
                return await self._returned(received, response.body)
            succeeded(received, self.ack_policy)
        return None

    async def _returned(self, received: Received | ReceivedBatch, returned: Any) -> Exception | None:
        """It returned something: an outcome, or else only what it wants published."""
        if isinstance(returned, HandlerException):
            return await self._obey(received, returned)
        if isinstance(returned, Exception):
            failed(received, self.ack_policy)
            return returned
        if isinstance(returned, OUTCOMES):
            received.judge(returned)
            return None
        if isinstance(received, ReceivedBatch) and not isinstance(returned, type):
            received.returned = returned
        elif (wrong := senseless(returned)) is not None:
            return NoVerdict(f"{wrong}. The message is retried")
        succeeded(received, self.ack_policy)
        return None

    async def _obey(self, received: Received | ReceivedBatch, raised: HandlerException) -> Exception | None:
        if self.ack_policy is AckPolicy.MANUAL:
            return raised
        try:
            await obey(received, raised)
        except LeaseLost as lost:
            return lost
        except Exception as error:  # noqa: BLE001 - a verdict that cannot be carried out is none
            why = "" if error is raised else f" ({describe(error)})"
            failure = NoVerdict(f"{type(raised).__name__} cannot be obeyed{why}: the message is retried")
            failure.__cause__ = error
            return failure
        return None

    def _stop_soon(self) -> None:
        # A task of its own: stopping waits for running handlers, and we are inside one.
        self._stopping = asyncio.create_task(self.stop())

    def _outcome(self, received: Received, error: Exception | None) -> Outcome:
        """What the verdict means. None at all is never taken for success."""
        if error is None and received.failure is None and type(received.verdict) is Done:
            return received.verdict  # The common case.
        if isinstance(error, HandlerDied) or (
            isinstance(error, LeaseLost) and is_own(error, received.delivery)
        ):
            raise error
        if isinstance(error, Undecodable):
            return Dead(Reason.UNDECODABLE, self._described(error), ran=False)
        if error is not None and received.failure is error:
            raise error  # No policy may treat a refused acknowledgement as done.
        verdict = received.verdict or verdict_in(error)
        if received.failure is not None and isinstance(verdict, Done):
            raise received.failure  # Nor may a handler that swallowed it.
        match verdict:
            case Dead(error=None) if error is not None and not isinstance(
                error, HandlerException | NoVerdict
            ):
                self._broker_config.observer.failed(received.delivery, error)
                return replace(verdict, error=self._described(error))
            case Done() | Retry() | Postpone() | Dead() | Release():
                if (
                    error is not None
                    and not isinstance(error, HandlerException)
                    and type(verdict) is not Dead
                ):
                    observer = self._broker_config.observer
                    observer.overruled(received.delivery, self._described(error), verdict)
                return verdict
            case Promised() if error is None or isinstance(error, AckMessage):
                return Done()
            case Nacked(delay=timedelta()):
                if error is not None:
                    self._broker_config.observer.failed(received.delivery, error)
                return verdict.outcome(
                    decide(self.settings, self._broker_config.observer, received.delivery, error)
                )
        if error is not None:
            raise error
        if not isinstance(verdict, Nacked):
            raise NoVerdict
        return verdict.outcome(decide(self.settings, self._broker_config.observer, received.delivery, None))

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

        A verdict is written when you give it. The lease is not renewed: call `extend` if you take longer.
        """
        if self.calls:
            raise RuntimeError(
                "this subscriber has a handler, which gets its messages: use another one to take them"
            )
        source, settings = self._source, self._worker_settings()
        attempt = Attempt(source, self._deliver, settings, self._broker_config.observer)
        store = self._broker_config.store
        taken = await take_one(
            source, store, self.queues, attempt, settings, timeout, self._broker_config.observer
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
            # The caller never got it, so no verdict will come.
            outcome: Outcome = Release()
            if isinstance(error, Undecodable):
                outcome = Dead(Reason.UNDECODABLE, settings.described(error.__cause__ or error), ran=False)
            elif isinstance(error, Exception):
                outcome = decide(settings, self._broker_config.observer, taken.delivery, error)
            settling = asyncio.create_task(
                settle(source, self._broker_config.observer, Settlement(taken.delivery, outcome))
            )
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
