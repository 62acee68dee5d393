"""A publisher for one queue: an object to publish with, and a decorator for a handler's return value."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from faststream.exceptions import FeatureNotSupportedException

from nightmail.broker._upstream import PublisherMiddleware, PublisherUsecase, SendableMessage
from nightmail.broker.commands import OutboxPublishCommand, due_from
from nightmail.broker.config import OutboxPublisherConfig
from nightmail.broker.specification import OutboxPublisherSpecification
from nightmail.durations import Duration
from nightmail.message import OnConflict

if TYPE_CHECKING:
    from faststream.response import PublishCommand


class OutboxPublisher(PublisherUsecase):
    """Publishes to its queue."""

    def __init__(self, config: OutboxPublisherConfig, specification: OutboxPublisherSpecification) -> None:
        super().__init__(config, specification)
        self._queue = config.queue

    @property
    def queue(self) -> str:
        """Its queue, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._queue}"

    async def publish(
        self,
        message: SendableMessage = None,
        *,
        session: object | None = None,
        activate_in: Duration | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        on_conflict: OnConflict = "skip",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> int | None:
        """Publish to its queue; the message's id, or `None` when a conflict stored nothing."""
        cmd = OutboxPublishCommand(
            (message,),
            queue=self.queue,
            session=session,
            due=due_from(activate_in, activate_at),
            timer_id=timer_id,
            on_conflict=on_conflict,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to,
        )
        stored: int | None = await self._basic_publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return stored

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        command = OutboxPublishCommand.from_cmd(cmd)
        command.destination = self.queue
        await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )

    async def request(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not offered: nobody waits for an answer that may come in days."""
        raise FeatureNotSupportedException("OutboxBroker has no request(): give reply_to a queue instead")
