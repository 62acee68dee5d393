"""A group of subscribers and publishers, to be included in a broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nightmail.broker._upstream import EMPTY, BrokerConfig, BrokerRouter, Registrator
from nightmail.broker.message import Received
from nightmail.broker.registrator import OutboxRegistrator

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream.middlewares import AckPolicy

    from nightmail.broker._upstream import BrokerMiddleware, CodecProto, CustomCallable


class OutboxRouter(OutboxRegistrator, BrokerRouter[Received, BrokerConfig]):
    """Its prefix goes before the queues of its subscribers and publishers alike."""

    def __init__(
        self,
        prefix: str = "",
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        routers: Iterable[Registrator[Any, Any]] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        super().__init__(
            handlers=(),
            config=BrokerConfig(
                prefix=prefix,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                ack_policy=ack_policy,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
