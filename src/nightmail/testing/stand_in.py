"""A stand-in for a broker that is running: for one task and those it starts, while the others keep the broker as it is.

FastStream's "try it out" runs a handler under the test broker in the middle of a live service. Whatever else happens
there meanwhile must reach the real store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch
from weakref import WeakKeyDictionary

from nightmail.broker.producer import OutboxProducer

if TYPE_CHECKING:
    from nightmail.broker.broker import OutboxBroker
    from nightmail.store import FullStore


@dataclass(frozen=True, slots=True, eq=False)
class StandIn:
    """What a task has instead of the broker's own."""

    store: FullStore
    producer: OutboxProducer
    request: Callable[..., Awaitable[Any]]


@contextmanager
def standing_in(broker: OutboxBroker, stand_in: StandIn) -> Iterator[None]:
    """Within the block, in this task and those it starts, the broker has the stand-in's store and producer."""
    _stand_ins.set({**_stand_ins.get(), broker: stand_in})
    switched = _switched.get(broker)
    if switched is None:
        switched = _switched[broker] = _Switched(broker)
    switched.users += 1
    try:
        yield
    finally:
        switched.users -= 1
        if not switched.users:
            del _switched[broker]
            switched.close()
        _stand_ins.set({each: other for each, other in _stand_ins.get().items() if each is not broker})


class _Switched:
    """A broker that asks, at every use, whose store and producer it shall take."""

    def __init__(self, broker: OutboxBroker) -> None:
        self.users = 0
        config = broker.config.broker_config
        store, producer, request = broker._store, config.producer, broker.request

        def chosen_store() -> Any:
            return store if (here := _stand_ins.get().get(broker)) is None else here.store

        def chosen_producer() -> Any:
            return producer if (here := _stand_ins.get().get(broker)) is None else here.producer

        async def chosen_request(*args: Any, **kwargs: Any) -> Any:
            here = _stand_ins.get().get(broker)
            return await (request if here is None else here.request)(*args, **kwargs)

        with ExitStack() as stack:
            stack.enter_context(patch.object(broker, "_store", _Chosen(chosen_store)))
            stack.enter_context(patch.object(config, "producer", _Chosen(chosen_producer)))
            stack.enter_context(patch.object(broker, "request", chosen_request))
            self.close: Final = stack.pop_all().close


class _Chosen:
    """Whatever is chosen at each use."""

    def __init__(self, choose: Callable[[], Any]) -> None:
        self._choose = choose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._choose(), name)


_stand_ins: Final[ContextVar[Mapping[OutboxBroker, StandIn]]] = ContextVar("nightmail_stand_ins", default={})  # noqa: B039 - never changed
_switched: Final[WeakKeyDictionary[OutboxBroker, _Switched]] = WeakKeyDictionary()
