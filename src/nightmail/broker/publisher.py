"""A publisher for one queue: an object to publish with, and a decorator for a handler's return value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from faststream.exceptions import FeatureNotSupportedException

from nightmail.broker._upstream import PublisherMiddleware, SendableMessage
from nightmail.broker.call_assertions import PublisherWithAssertions
from nightmail.broker.commands import OutboxPublishCommand, correlation_from, merged
from nightmail.broker.config import OutboxPublisherConfig
from nightmail.broker.counted import must_be_awaited
from nightmail.broker.decisions import is_answer
from nightmail.broker.option_checks import check_options
from nightmail.broker.option_help import lists_options
from nightmail.broker.options import TimerOptions
from nightmail.broker.sessions import current_session
from nightmail.broker.specification import OutboxPublisherSpecification

if TYPE_CHECKING:
    from faststream.response import PublishCommand


class OutboxPublisher(PublisherWithAssertions):
    """Publishes to its queue."""

    def __init__(self, config: OutboxPublisherConfig, specification: OutboxPublisherSpecification) -> None:
        super().__init__(config, specification)
        self._queue = config.queue
        self._defaults = config.defaults

    @property
    def queue(self) -> str:
        """Its queue, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._queue}"

    @must_be_awaited
    @lists_options(TimerOptions)
    async def publish(
        self, message: SendableMessage = None, queue: str | None = None, **options: Unpack[TimerOptions]
    ) -> int | None:
        """Publish to its queue; the id, or `None` when its timer id was taken and nothing was stored.

        An option that is not given is as `publisher` was told, else as shown here.

        Args:
            message: What the handler gets: anything that can be encoded as JSON, or `str`, or `bytes`.
            queue: Another queue, for this message only.
        """
        check_options("publish()", options, TimerOptions)
        options = merged(self._defaults, options)
        options["correlation_id"] = correlation_from(options, self._outer_config.id_generator)
        stored: int | None = await self._basic_publish(
            OutboxPublishCommand((message,), self.queue if queue is None else queue, options),
            producer=self._outer_config.producer,
            _extra_middlewares=(),
        )
        return stored

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        if is_answer(cmd.body):
            return  # An outcome is for the worker only, not to be published.
        command = OutboxPublishCommand.from_cmd(cmd).with_defaults(self._defaults)
        command.destination = self.queue
        command.join(current_session())
        await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )

    async def request(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not offered: nothing waits for an answer that may come in days."""
        raise FeatureNotSupportedException("OutboxBroker has no request(): give reply_to a queue instead")
