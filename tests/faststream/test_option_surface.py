"""Every option that FastStream's own brokers have in common is here, at every level, or there is a reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from faststream.redis import RedisBroker, RedisRouter
from faststream.redis.schemas.types import RedisBrokerParams, RedisConnectionParams

from nightmail import OutboxBroker, OutboxRoute, OutboxRoutePublisher, OutboxRouter
from nightmail.broker.options import BrokerOptions, PublisherOptions, RouterOptions, SubscriberOptions

OF_REDIS = {"message_format", "channel", "list", "stream", "self"}


def of(call: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(call).parameters)


def test_a_broker_has_them_all_but_one() -> None:
    theirs = set(RedisBrokerParams.__annotations__) - set(RedisConnectionParams.__annotations__) - OF_REDIS

    # How to log in to a database is said by its URL, its engine or its client, and nowhere else.
    assert theirs - set(BrokerOptions.__annotations__) == {"security"}


def test_a_subscriber_has_them_all() -> None:
    assert of(RedisBroker.subscriber) - OF_REDIS - set(SubscriberOptions.__annotations__) == set()


def test_a_publisher_has_them_all() -> None:
    assert of(RedisBroker.publisher) - OF_REDIS - set(PublisherOptions.__annotations__) == set()


def test_a_router_has_them_all() -> None:
    assert of(RedisRouter) - of(OutboxRouter) - set(RouterOptions.__annotations__) == set()


def test_what_the_broker_takes_is_taken_at_every_level() -> None:
    assert of(OutboxBroker.subscriber) == of(OutboxRouter.subscriber)
    assert of(OutboxBroker.subscriber) == of(OutboxRoute) - {"call", "publishers"} | {"self"}
    assert of(OutboxBroker.publisher) == of(OutboxRouter.publisher) == of(OutboxRoutePublisher) | {"self"}
