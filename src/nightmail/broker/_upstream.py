"""Every `faststream._internal` name we touch, imported here and only here.

FastStream has no public interface for writing brokers yet, and changes its internals in patch releases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from fast_depends.core import CallModel
from fast_depends.utils import is_coroutine_callable
from faststream import __about__
from faststream._internal._compat import json_loads
from faststream._internal.basic_types import LoggerProto, SendableMessage
from faststream._internal.broker import BrokerRouter, BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, SubscriberRoute
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
    UnderlyingDriverAnnotation,
)
from faststream._internal.constants import EMPTY, ContentTypes
from faststream._internal.context import Context
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.call_wrapper import HandlerCallWrapper
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection, HandlerItem
from faststream._internal.endpoint.utils import ParserComposition, process_msg
from faststream._internal.logger import DefaultLoggerStorage, LoggerState, make_logger_state
from faststream._internal.logger.logger_proxy import EmptyLoggerObject
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.testing.broker import EnterType, TestBroker
from faststream._internal.testing.calls import BrokerFields, CallAssertions, ExpectedCall
from faststream._internal.types import (
    AsyncCallable,
    BrokerMiddleware,
    CustomCallable,
    Filter,
    IdGenerator,
    MsgType,
    PublisherMiddleware,
)
from faststream.middlewares import AckPolicy

__all__ = [
    "EMPTY",
    "FASTSTREAM_VERSION",
    "ArgsContainer",
    "AsyncCallable",
    "BatchCodecProto",
    "BrokerConfig",
    "BrokerFields",
    "BrokerMiddleware",
    "BrokerRouter",
    "BrokerUsecase",
    "CallAssertions",
    "CallModel",
    "CallsCollection",
    "CodecProto",
    "ContentTypes",
    "Context",
    "ContextRepo",
    "CustomCallable",
    "DefaultCodec",
    "DefaultLoggerStorage",
    "EmptyLoggerObject",
    "EnterType",
    "ExpectedCall",
    "FakePublisher",
    "FastDependsConfig",
    "Filter",
    "HandlerCallWrapper",
    "HandlerItem",
    "IdGenerator",
    "LoggerProto",
    "LoggerState",
    "OwnStack",
    "ParserComposition",
    "ProducerProto",
    "PublisherMiddleware",
    "PublisherSpecification",
    "PublisherSpecificationConfig",
    "PublisherUsecase",
    "PublisherUsecaseConfig",
    "Registrator",
    "SendableMessage",
    "SubscriberRoute",
    "SubscriberSpecification",
    "SubscriberSpecificationConfig",
    "SubscriberUsecase",
    "SubscriberUsecaseConfig",
    "TestBroker",
    "UnderlyingDriverAnnotation",
    "declared",
    "get_broker_logger",
    "is_coroutine_callable",
    "json_loads",
    "make_logger_state",
    "process_msg",
    "resolve_ack_policy",
    "restore_direct_calls",
]

FASTSTREAM_VERSION: Final = __about__.__version__


def resolve_ack_policy(subscriber: SubscriberUsecase[Any], policy: AckPolicy) -> None:
    """Set the policy that applies once routers are included.

    FastStream takes a snapshot when the subscriber is declared; a policy given to the broker would not reach the
    subscribers of a router included later.
    """
    subscriber.ack_policy = policy


class OwnStack(SubscriberUsecase[MsgType]):
    """A subscriber that decides itself what goes around its middlewares.

    FastStream would put its own acknowledgements (see `acknowledging`) and its own access log (see `logging`) there.
    """

    def _SubscriberUsecase__build__middlewares_stack(self) -> tuple[BrokerMiddleware[Any], ...]:  # noqa: N802 - its name there
        return (*self._around_middlewares, *self._broker_middlewares)

    @property
    def _around_middlewares(self) -> Sequence[BrokerMiddleware[Any]]:
        raise NotImplementedError


def declared(handler: Any) -> Any:
    """The handler as it was written, before decorators."""
    return handler._declared_call if isinstance(handler, HandlerCallWrapper) else handler


def restore_direct_calls(subscriber: SubscriberUsecase[Any], as_written: Callable[[Any], Any]) -> None:
    """Let handlers be called as their authors wrote them: FastStream calls the decorated ones."""
    for call in subscriber.calls:
        call.handler._composed_call = as_written(call.handler._composed_call)
