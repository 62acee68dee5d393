"""A group of subscribers and publishers, to be included in a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Unpack

from nightmail.broker._upstream import (
    EMPTY,
    ArgsContainer,
    BrokerConfig,
    BrokerRouter,
    SubscriberRoute,
)
from nightmail.broker.option_checks import check_options
from nightmail.broker.option_help import lists_options
from nightmail.broker.options import PublisherOptions, RouterOptions, SubscriberOptions
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.broker.registrator import OutboxRegistrator


class OutboxRoutePublisher(ArgsContainer):
    """A publisher of a route: what `publisher` takes, for later."""

    @lists_options(PublisherOptions)
    def __init__(self, queue: str, **options: Unpack[PublisherOptions]) -> None:
        """A publisher for this queue.

        Args:
            queue: The queue to publish to.
        """
        check_options("OutboxRoutePublisher", options, PublisherOptions)
        super().__init__(queue, **options)


class OutboxRoute(SubscriberRoute):
    """A handler and what `subscriber` takes, for a router that is told of its handlers instead of decorating them."""

    @lists_options(SubscriberOptions)
    def __init__(
        self,
        call: Callable[..., Any],
        *queues: str,
        publishers: Iterable[OutboxRoutePublisher] = (),
        **options: Unpack[SubscriberOptions],
    ) -> None:
        """A handler for these queues.

        Args:
            call: The handler.
            queues: The queues whose messages it gets.
            publishers: Where its return value goes.
        """
        check_options("OutboxRoute", options, SubscriberOptions)
        super().__init__(call, *queues, publishers=publishers, **options)


class OutboxRouter(OutboxRegistrator, BrokerRouter[Received | ReceivedBatch, BrokerConfig]):
    """Its prefix goes before the queues of its subscribers and publishers alike."""

    @lists_options(RouterOptions)
    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[OutboxRoute] = (),
        **options: Unpack[RouterOptions],
    ) -> None:
        """A router.

        Args:
            prefix: Goes before the names of its queues.
            handlers: Its handlers, for those who do not decorate them.
        """
        check_options("OutboxRouter", options, RouterOptions)
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
