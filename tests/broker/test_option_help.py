"""`help` and `inspect.signature` show every option, with its default and what it does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from nightmail import (
    Message,
    OutboxBroker,
    OutboxResponse,
    OutboxRoute,
    OutboxRoutePublisher,
    OutboxRouter,
    SyncPublisher,
    TestOutboxBroker,
    WorkerSettings,
)
from nightmail.broker.option_help import options_in
from nightmail.broker.options import (
    BrokerOptions,
    DeadOptions,
    PublisherOptions,
    PublishOptions,
    RelayOptions,
    RouterOptions,
    SubscriberOptions,
    TimerOptions,
    WorkerOptions,
    worker_settings,
)
from nightmail.broker.publisher import OutboxPublisher
from nightmail.stores.memory import MemoryStore

TAKE: list[tuple[Callable[..., Any], type[Any]]] = [
    (OutboxBroker.__init__, BrokerOptions),
    (OutboxBroker.publish, TimerOptions),
    (OutboxBroker.publish_batch, PublishOptions),
    (OutboxBroker.request, TimerOptions),
    (OutboxBroker.subscriber, SubscriberOptions),
    (OutboxBroker.publisher, PublisherOptions),
    (OutboxBroker.relay, RelayOptions),
    (OutboxBroker.dead_letters, DeadOptions),
    (OutboxBroker.redrive, DeadOptions),
    (OutboxBroker.purge_dead, DeadOptions),
    (OutboxRouter.__init__, RouterOptions),
    (OutboxRouter.subscriber, SubscriberOptions),
    (OutboxRouter.publisher, PublisherOptions),
    (OutboxRouter.relay, RelayOptions),
    (OutboxRoute.__init__, SubscriberOptions),
    (OutboxRoutePublisher.__init__, PublisherOptions),
    (OutboxPublisher.publish, TimerOptions),
    (OutboxResponse.__init__, TimerOptions),
    (SyncPublisher.publish, TimerOptions),
    (SyncPublisher.publish_batch, PublishOptions),
    (TestOutboxBroker.dead_letters, DeadOptions),
]


def name_of(each: Any) -> str:
    return getattr(each, "__qualname__", str(each))


@pytest.mark.parametrize(("function", "known"), TAKE, ids=name_of)
def test_every_option_is_in_the_signature_with_its_default(
    function: Callable[..., Any], known: type[Any]
) -> None:
    parameters = inspect.signature(function).parameters

    for name, option in options_in(known).items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY, name
        assert parameters[name].default == option.default, name
    assert not [each for each in parameters.values() if each.kind is inspect.Parameter.VAR_KEYWORD]


@pytest.mark.parametrize(("function", "known"), TAKE, ids=name_of)
def test_every_parameter_is_explained_once(function: Callable[..., Any], known: type[Any]) -> None:
    told = re.findall(r"^    (\w+): \S", inspect.getdoc(function) or "", re.MULTILINE)

    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    assert sorted(told) == sorted(parameters)


def test_a_bound_method_shows_them_too() -> None:
    broker = OutboxBroker("memory://")

    assert inspect.signature(broker.publish).parameters["priority"].default == 0
    assert "priority: 0 to 9" in (inspect.getdoc(broker.publisher("q").publish) or "")


async def test_the_defaults_of_a_publish_are_those_it_shows() -> None:
    stored: list[Message] = []

    class Store(MemoryStore):
        async def publish(self, message: Message, **options: Any) -> int | None:
            stored.append(message)
            return await super().publish(message, **options)

    shown: Any = {name: option.default for name, option in options_in(TimerOptions).items()}
    async with OutboxBroker(Store(), id_generator=lambda: "1", logger=None) as broker:
        await broker.publish("x", "q")
        await broker.publish("x", "q", **shown)
        await broker.publisher("q").publish("x", **shown)

    assert stored[0] == stored[1] == stored[2]


def test_the_defaults_of_a_subscriber_are_those_it_shows() -> None:
    shown: Any = {name: option.default for name, option in options_in(WorkerOptions).items()}

    assert worker_settings(shown, None) == worker_settings({}, None) == WorkerSettings()


def test_the_defaults_of_a_publisher_and_of_a_router_are_taken() -> None:
    for known, take in (
        (PublisherOptions, OutboxBroker("memory://").publisher),
        (RouterOptions, OutboxRouter),
        (BrokerOptions, lambda name, **options: OutboxBroker("memory://", **options)),
    ):
        options: Any = {name: option.default for name, option in options_in(known).items()}
        take("q", **options)
