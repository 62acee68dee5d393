"""What brokers and routers have in common: declaring subscribers and publishers."""

from __future__ import annotations

from typing import Any, Unpack, cast

from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from nightmail.broker._upstream import (
    EMPTY,
    BrokerConfig,
    CallsCollection,
    PublisherSpecificationConfig,
    Registrator,
    SubscriberSpecificationConfig,
)
from nightmail.broker.config import OutboxPublisherConfig, OutboxSubscriberConfig
from nightmail.broker.message import Received
from nightmail.broker.options import SubscriberOptions, check_known, worker_options, worker_settings
from nightmail.broker.publisher import OutboxPublisher
from nightmail.broker.specification import OutboxPublisherSpecification, OutboxSubscriberSpecification
from nightmail.broker.subscriber import OutboxSubscriber
from nightmail.message import check_queue
from nightmail.worker import check_queues


class OutboxRegistrator(Registrator[Received, BrokerConfig]):
    """Declares subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self, *queues: str, **options: Unpack[SubscriberOptions]
    ) -> OutboxSubscriber:
        """Deliver the messages of these queues to the decorated handler."""
        check_known("subscriber()", options, SubscriberOptions)
        if options.get("ack_policy") is AckPolicy.ACK_FIRST:
            raise SetupError(
                "ACK_FIRST would delete the message before the handler ran, and lose it with the process: "
                "use AckPolicy.ACK to delete it even when the handler fails, or the default to retry"
            )
        worker_settings(worker_options(options), None)
        config = OutboxSubscriberConfig(
            _outer_config=cast("BrokerConfig", self.config),
            _ack_policy=options.get("ack_policy", EMPTY),
            no_reply=options.get("no_reply", False),
            queues=check_queues(queues),
            worker_options=worker_options(options),
        )
        calls = CallsCollection[Received]()
        specification = OutboxSubscriberSpecification(
            cast("BrokerConfig", self.config),
            SubscriberSpecificationConfig(
                title_=options.get("title"),
                description_=options.get("description"),
                include_in_schema=options.get("include_in_schema", True),
            ),
            calls,
            config.queues,
        )
        subscriber = OutboxSubscriber(config, specification, calls)
        super().subscriber(subscriber, persistent=options.get("persistent", True))
        return subscriber.add_call(
            parser_=options.get("parser") or self._parser,
            decoder_=options.get("decoder") or self._decoder,
            dependencies_=options.get("dependencies", ()),
            codec_=options.get("codec"),
        )

    def publisher(  # type: ignore[override]
        self,
        queue: str,
        *,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
        persistent: bool = True,
    ) -> OutboxPublisher:
        """A publisher for this queue, to call or to decorate a handler with."""
        check_queue(queue)
        outer = cast("BrokerConfig", self.config)
        publisher = OutboxPublisher(
            OutboxPublisherConfig(_outer_config=outer, queue=queue),
            OutboxPublisherSpecification(
                outer,
                PublisherSpecificationConfig(
                    title_=title,
                    description_=description,
                    schema_=schema,
                    include_in_schema=include_in_schema,
                ),
                queue,
            ),
        )
        super().publisher(publisher, persistent=persistent)
        return publisher
