"""Call assertions that also take what only our messages have: when they are due, and their timer id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypedDict, TypeVar, Unpack, overload

from faststream.exceptions import SetupError

from nightmail.broker._upstream import (
    EMPTY,
    BrokerFields,
    CallAssertions,
    ExpectedCall,
    HandlerCallWrapper,
    OwnStack,
    PublisherUsecase,
)
from nightmail.broker.option_checks import check_options
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.durations import as_timedelta
from nightmail.message import Delivery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fast_depends.dependencies import Dependant
    from faststream.message import StreamMessage

    from nightmail.broker._upstream import CustomCallable, Filter

_P = ParamSpec("_P")
_R = TypeVar("_R")


class CommonExpectations(TypedDict, total=False):
    """What FastStream's own call assertions take; each may be a matcher."""

    headers: Any
    """Headers that the message must have; it may have more."""
    correlation_id: Any
    reply_to: Any
    content_type: Any
    path: Any
    context: Mapping[str, Any]
    """Paths in the context, as `Context()` takes them, and their values."""


class Expectations(CommonExpectations, total=False):
    """What a message must be like, in the words of `publish`; what is not given is not compared."""

    queue: Any
    timer_id: Any
    activate_in: Any
    """From its publish to the moment at which it is due, as a `timedelta` or in seconds. A retry is due later."""
    activate_at: Any
    """The moment at which it is due."""
    expires_in: Any
    ordering_key: Any
    priority: Any


class OutboxCallAssertions(CallAssertions):
    """FastStream's call assertions, and those of the message's own fields."""

    __slots__ = ()

    async def assert_called_once_with(self, body: Any = EMPTY, /, **expected: Unpack[Expectations]) -> None:
        """Assert that it was called once, with the message described here."""
        await self._assert_called_once_with(_expected_call("assert_called_once_with()", body, expected))

    async def assert_called_with(self, body: Any = EMPTY, /, **expected: Unpack[Expectations]) -> None:
        """Assert that the last message it saw is the one described here."""
        await self._assert_called_with(_expected_call("assert_called_with()", body, expected))

    async def assert_any_call(self, body: Any = EMPTY, /, **expected: Unpack[Expectations]) -> None:
        """Assert that one of the messages it saw is the one described here."""
        await self._assert_any_call(_expected_call("assert_any_call()", body, expected))


class OutboxHandlerCallWrapper(OutboxCallAssertions, HandlerCallWrapper[_P, _R]):
    """What a decorated handler becomes."""

    __slots__ = ()


class SubscriberWithAssertions(OwnStack[Received | ReceivedBatch]):
    """A subscriber whose handlers have our call assertions."""

    _call_wrapper_class = OutboxHandlerCallWrapper

    if TYPE_CHECKING:
        # FastStream wraps the handler; this only says in what.
        @overload
        def __call__(
            self,
            func: Callable[_P, _R],
            *,
            filter: Filter[Any] = ...,
            parser: CustomCallable | None = None,
            decoder: CustomCallable | None = None,
            dependencies: Sequence[Dependant] = (),
        ) -> OutboxHandlerCallWrapper[_P, _R]: ...

        @overload
        def __call__(
            self,
            func: None = None,
            *,
            filter: Filter[Any] = ...,
            parser: CustomCallable | None = None,
            decoder: CustomCallable | None = None,
            dependencies: Sequence[Dependant] = (),
        ) -> Callable[[Callable[_P, _R]], OutboxHandlerCallWrapper[_P, _R]]: ...

        def __call__(self, func: Callable[..., Any] | None = None, **options: Any) -> Any: ...


class PublisherWithAssertions(OutboxCallAssertions, PublisherUsecase):
    """A publisher that has our call assertions, and so have the handlers it decorates."""

    _call_wrapper_class = OutboxHandlerCallWrapper

    if TYPE_CHECKING:

        def __call__(self, func: Callable[_P, _R]) -> OutboxHandlerCallWrapper[_P, _R]: ...


def _expected_call(what: str, body: Any, expected: Expectations) -> ExpectedCall:
    check_options(what, expected, Expectations)
    common: dict[str, Any] = {name: expected.get(name, EMPTY) for name in CommonExpectations.__annotations__}
    own = {name: _comparable(name, value) for name, value in expected.items() if name in _READERS}
    return ExpectedCall(body=body, **common, broker_fields=BrokerFields(own, _read))


def _comparable(name: str, value: Any) -> Any:
    """The value as the message has it: `publish` takes more than one spelling of the same delay."""
    if name == "activate_in" and value is None:
        return timedelta(0)
    if name in {"activate_in", "expires_in"} and isinstance(value, int | float):
        return as_timedelta(name, value)
    return value


def _read(name: str, message: StreamMessage[Any]) -> Any:
    received = message.raw_message
    if not isinstance(received, Received):
        raise SetupError(f"{name} is for messages of an OutboxBroker, and this one came from another")
    return _READERS[name](received.delivery)


def _lifetime(delivery: Delivery) -> timedelta | None:
    return None if delivery.expires_at is None else delivery.expires_at - delivery.published_at


_READERS: Final[Mapping[str, Callable[[Delivery], Any]]] = {
    "queue": lambda delivery: delivery.queue,
    "timer_id": lambda delivery: delivery.timer_id,
    "activate_in": lambda delivery: delivery.due_at - delivery.published_at,
    "activate_at": lambda delivery: delivery.due_at,
    "expires_in": _lifetime,
    "ordering_key": lambda delivery: delivery.ordering_key,
    "priority": lambda delivery: delivery.priority,
}
