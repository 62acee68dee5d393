"""A group of subscribers and publishers, to be included in a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from nightmail.broker._upstream import (
    EMPTY,
    ArgsContainer,
    BrokerConfig,
    BrokerRouter,
    Registrator,
    SubscriberRoute,
)
from nightmail.broker.options import PublisherOptions, SubscriberOptions, check_known
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.broker.registrator import OutboxRegistrator

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant

    from nightmail.broker._upstream import BrokerMiddleware, CodecProto, CustomCallable


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
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        routers: Iterable[Registrator[Any, Any]] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
        underlying_driver_annotations: Mapping[Any, Any] | None = None,
    ) -> None:
        if ack_policy is AckPolicy.ACK_FIRST:
            raise SetupError(
                "ACK_FIRST would delete messages before their handlers ran: leave it out to retry"
            )
        super().__init__(
            handlers=handlers,
            config=BrokerConfig(
                prefix=prefix,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                ack_policy=ack_policy,
                include_in_schema=include_in_schema,
                underlying_driver_annotations=underlying_driver_annotations or {},
            ),
            routers=routers,
        )
