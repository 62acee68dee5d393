"""A subscriber's shadow: the same handlers, pipeline and settings, on another store.

The subscriber itself is left as it is, so that one that is running keeps running.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from random import random
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from faststream.exceptions import IgnoredException

from nightmail.broker._upstream import BrokerConfig, resolve_ack_policy
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.broker.subscriber import OutboxSubscriber
from nightmail.engine.settings import WorkerSettings
from nightmail.message import Delivery

if TYPE_CHECKING:
    from faststream.response import Response

    from nightmail.engine.presence import Presence
    from nightmail.engine.worker import Worker
    from nightmail.observe import Observer
    from nightmail.store import FullStore

_NOT_OURS: Final = (CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)

Raised: TypeAlias = Callable[[Exception], None]
Answered: TypeAlias = Callable[[int, "Response"], None]


class Overlay:
    """An object with some of its attributes replaced."""

    def __init__(self, beneath: object, **above: object) -> None:
        self.__dict__.update(above)
        self._beneath = beneath

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


class Shadow(OutboxSubscriber):
    """Reports what its handlers raised and answered. Made by `shadow_of` only."""

    _raised: Raised
    _answered: Answered

    @property
    def batch(self) -> int | None:
        """How many messages its handlers get at once, if they get several."""
        return self._config.max_batch

    def _worker_settings(self) -> WorkerSettings:
        settings = super()._worker_settings()
        retry: Any = settings.retry
        if getattr(retry, "chance", None) is random:
            # The middle of the jitter: each retry at its nominal moment, and the same order every time.
            return replace(settings, retry=replace(retry, chance=lambda: 0.5))
        return settings

    async def process_message(self, msg: Received | ReceivedBatch) -> Response:
        """Execute all message processing stages, as its subscriber would."""
        try:
            response = await super().process_message(msg)
        except IgnoredException:
            raise  # A decision, and no failure.
        except Exception as error:
            # Reported here: an acknowledgement policy may hide it from everything else.
            self._raised(error)
            raise
        except BaseException as error:
            if isinstance(error, _NOT_OURS):
                raise
            # What test frameworks raise to end a test. A worker that died of it would say nothing to the test.
            failure = AssertionError(str(error))
            self._raised(failure)
            raise failure from error
        for item in msg.items:
            self._answered(item.delivery.id, response)
        return response


def shadow_of(
    subscriber: OutboxSubscriber,
    store: FullStore,
    *,
    presence: Presence,
    raised: Raised,
    answered: Answered,
) -> tuple[Shadow, Worker]:
    """The shadow of this subscriber on that store, and its worker."""
    shadow = cast("Shadow", copy(subscriber))
    shadow.__class__ = Shadow
    outer = subscriber._broker_config

    def failed(delivery: Delivery, error: BaseException) -> None:
        # Also what no handler raised: a decision that was never made, time that ran out.
        if isinstance(error, Exception):
            raised(error)
        outer.observer.failed(delivery, error)

    observer = cast("Observer", Overlay(outer.observer, failed=failed))
    overlay = Overlay(outer, store=store, observer=observer, presence=presence)
    shadow._outer_config = cast("BrokerConfig", overlay)
    shadow._raised, shadow._answered = raised, answered
    resolve_ack_policy(shadow, shadow._config.ack_policy)
    # So that what stops the subscriber, as StopConsume does, stops this worker.
    shadow._worker = shadow._new_worker()
    return shadow, shadow._worker
