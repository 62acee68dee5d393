"""A subscriber is a worker whose handler is FastStream's own pipeline: nothing of it is copied or overridden."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, cast

from faststream.exceptions import FeatureNotSupportedException, SkipMessage, StopConsume

from nightmail.attempt import checked
from nightmail.broker._upstream import (
    AsyncCallable,
    CallsCollection,
    CustomCallable,
    FakePublisher,
    SubscriberUsecase,
    resolve_ack_policy,
)
from nightmail.broker.commands import OutboxPublishCommand
from nightmail.broker.config import OutboxBrokerConfig, OutboxSubscriberConfig
from nightmail.broker.message import Nacked, Received
from nightmail.broker.options import WorkerOptions, worker_settings
from nightmail.broker.parser import decode_body, parse_delivery
from nightmail.broker.specification import OutboxSubscriberSpecification
from nightmail.errors import LeaseLost, NoVerdict, Undecodable
from nightmail.message import Delivery
from nightmail.outcome import Dead, Outcome, Reason
from nightmail.settings import WorkerSettings
from nightmail.worker import Worker

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from faststream.response import PublishCommand


class OutboxSubscriber(SubscriberUsecase[Received]):
    """Delivers the messages of its queues to its handlers."""

    def __init__(
        self,
        config: OutboxSubscriberConfig,
        specification: OutboxSubscriberSpecification,
        calls: CallsCollection[Received],
    ) -> None:
        config.parser = parse_delivery
        config.decoder = decode_body
        super().__init__(config, specification, calls)
        self._config = config
        self.settings = WorkerSettings()
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
        await super().start()
        self._post_start()
        if self.calls:
            self._worker = self._new_worker()
            self._running = asyncio.create_task(
                self._worker.run(), name=f"nightmail {', '.join(self.queues)}"
            )
            self._running.add_done_callback(self._report_death)
            # Its first step: a stop that came before it would not be heard.
            await asyncio.sleep(0)

    def _new_worker(self) -> Worker:
        broker = cast("OutboxBrokerConfig", self._outer_config)
        merged: dict[str, Any] = {**broker.worker_options, **self._config.worker_options}
        self.settings = worker_settings(cast("WorkerOptions", merged), self._outer_config.graceful_timeout)
        return Worker(
            broker.store,
            self._deliver,
            queues=self.queues,
            settings=self.settings,
            observer=broker.observer,
            solitude=broker.solitude,
        )

    async def stop(self) -> None:
        """Claim no more, finish what runs, hand back the rest."""
        self.running = False
        if self._worker is not None:
            await self._worker.stop()
            self._worker = None
        await super().stop()

    def _report_death(self, running: asyncio.Task[None]) -> None:
        error = None if running.cancelled() else running.exception()
        if isinstance(error, Exception):
            self._log(logging.CRITICAL, f"the worker of {', '.join(self.queues)} died", exc_info=error)

    async def _deliver(self, delivery: Delivery) -> Outcome | None:
        """Run one delivery through FastStream, and read the verdict it left."""
        received = Received(delivery)
        try:
            await self.process_message(received)
        except StopConsume:
            self._stop_soon()
        except SystemExit:
            self._stop_soon()
            if app := self._outer_config.context.get("app"):
                app.exit()
        except Exception as error:  # noqa: BLE001 - the worker's retry policy decides what it means
            return self._outcome(received, error)
        return self._outcome(received, None)

    def _stop_soon(self) -> None:
        # A task of its own: stopping waits for running handlers, and we are inside one.
        self._stopping = asyncio.create_task(self.stop())

    def _outcome(self, received: Received, error: Exception | None) -> Outcome:
        """What the verdict means. None at all is never taken for success."""
        if isinstance(error, LeaseLost):
            raise error
        if isinstance(error, Undecodable):
            return Dead(Reason.UNDECODABLE, self.settings.describe_error(error.__cause__ or error))
        verdict = received.verdict
        if verdict is not None and not isinstance(verdict, Nacked):
            return verdict
        if error is not None:
            raise error
        if verdict is None:
            raise NoVerdict
        # A policy that forgot to say anything must not look like a handler that returned nothing.
        return checked(self.settings.retry(received.delivery, None))

    def _get_parser_and_decoder(
        self, item_parser: CustomCallable | None = None, item_decoder: CustomCallable | None = None
    ) -> tuple[AsyncCallable, AsyncCallable]:
        parser, decoder = super()._get_parser_and_decoder(item_parser, item_decoder)
        return _marking(parser), _marking(decoder)

    def _make_response_publisher(self, message: StreamMessage[Received]) -> Iterable[FakePublisher]:
        return (_ReplyPublisher(producer=self._outer_config.producer, queue=message.reply_to),)

    async def get_one(self, *, timeout: float = 5) -> NoReturn:
        """Not offered yet."""
        raise FeatureNotSupportedException("get_one() is not supported by OutboxBroker: declare a handler")

    def __aiter__(self) -> AsyncIterator[StreamMessage[Received]]:
        raise FeatureNotSupportedException("iteration is not supported by OutboxBroker: declare a handler")

    def get_log_context(self, message: StreamMessage[Received] | None) -> dict[str, str]:
        """What the access log says about a message."""
        queue = ",".join(self.queues) if message is None else message.raw_message.delivery.queue
        return {"queue": queue, "message_id": getattr(message, "message_id", "")}


class _ReplyPublisher(FakePublisher):
    """Publishes a handler's return value to the queue that the message asked for."""

    __slots__ = ("_queue",)

    def __init__(self, *, producer: Any, queue: str) -> None:
        super().__init__(producer=producer)
        self._queue = queue

    def patch_command(self, cmd: PublishCommand) -> OutboxPublishCommand:
        command = OutboxPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination = self._queue
        return command


def _marking(step: AsyncCallable) -> AsyncCallable:
    """`step`, with what it raises marked as undecodable: a second try would raise the same."""

    async def marked(message: Any) -> Any:
        try:
            return await step(message)
        except (Undecodable, SkipMessage):
            raise
        except Exception as error:
            raise Undecodable(f"decoding raised {type(error).__name__}") from error

    return marked
