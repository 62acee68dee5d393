"""A group of subscribers and publishers, to be included in a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Unpack

from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from nightmail.broker._upstream import (
    EMPTY,
    ArgsContainer,
    BrokerConfig,
    BrokerRouter,
    SubscriberRoute,
)
from nightmail.broker.options import PublisherOptions, RouterOptions, SubscriberOptions, check_known
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.broker.registrator import OutboxRegistrator


class OutboxRoutePublisher(ArgsContainer):
    """A publisher of a route: what `publisher` takes, for later."""

    def __init__(self, queue: str, **options: Unpack[PublisherOptions]) -> None:
        check_known("OutboxRoutePublisher", options, PublisherOptions)
        super().__init__(queue, **options)


class OutboxRoute(SubscriberRoute):
    """A handler and what `subscriber` takes, for a router that is told of its handlers instead of decorating them."""

    def __init__(
        self,
        call: Callable[..., Any],
        *queues: str,
        publishers: Iterable[OutboxRoutePublisher] = (),
        **options: Unpack[SubscriberOptions],
    ) -> None:
        check_known("OutboxRoute", options, SubscriberOptions)
        super().__init__(call, *queues, publishers=publishers, **options)


class OutboxRouter(OutboxRegistrator, BrokerRouter[Received | ReceivedBatch, BrokerConfig]):
    """Its prefix goes before the queues of its subscribers and publishers alike."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[OutboxRoute] = (),
        **options: Unpack[RouterOptions],
    ) -> None:
        check_known("OutboxRouter", options, RouterOptions)
        if options.get("ack_policy") is AckPolicy.ACK_FIRST:
            raise SetupError(
                "ACK_FIRST would delete messages before their handlers ran: leave it out to retry"
            )
        super().__init__(
            handlers=handlers,
            config=BrokerConfig(
                prefix=prefix,
                broker_dependencies=options.get("dependencies", ()),
                broker_middlewares=options.get("middlewares", ()),
                broker_parser=options.get("parser"),
                broker_decoder=options.get("decoder"),
                broker_codec=options.get("codec"),
                ack_policy=options.get("ack_policy", EMPTY),
                include_in_schema=options.get("include_in_schema"),
                underlying_driver_annotations=options.get("underlying_driver_annotations") or {},
            ),
            routers=options.get("routers", ()),
        )
