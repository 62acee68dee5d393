"""Acknowledging in a caller's MULTI: what the handler writes and the acknowledgement are atomic.

In a MULTI, an acknowledgement that comes too late undoes nothing. So the message is watched from before the handler's
first command: if another worker takes it over, the server executes none of them. Renewing the lease does not disturb
that: its end is not in the watched key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from redis.exceptions import RedisClusterException, RedisError, WatchError

from nightmail.errors import CannotJoin, LeaseLost, NightmailError, StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import Done
from nightmail.store import Settlement
from nightmail.stores.redis.errors import REDIRECTIONS, Moving, translated
from nightmail.stores.redis.joining import Joining
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.nodes import Nodes
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.requests import Call
from nightmail.stores.redis.settling import Settling
from nightmail.stores.redis.watching import (
    LOST_CONNECTION,
    WatchingPipeline,
    lost_connection,
    watching_pipeline,
)

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline


class Acking:
    """Transactions that end by acknowledging messages."""

    def __init__(
        self,
        lane: Lane,
        registry: Registry,
        keys: Keys,
        nodes: Nodes,
        settling: Settling,
        joining: Joining,
        *,
        clustered: bool,
    ) -> None:
        self._lane = lane
        self._registry = registry
        self._keys = keys
        self._nodes = nodes
        self._settling = settling
        self._joining = joining
        self._clustered = clustered
        self._open: WeakKeyDictionary[Any, frozenset[tuple[str, bytes]]] = WeakKeyDictionary()

    @asynccontextmanager
    async def transaction(self, deliveries: Sequence[Delivery], client: object) -> AsyncIterator[Pipeline]:
        """See `RedisStore.transaction`."""
        self._check_one_slot(deliveries)
        held = self._settling.prepared_check(deliveries)
        ids = await self._registry.ids()
        pipe = watching_pipeline(client, clustered=self._clustered)
        try:
            await self._watch(pipe, deliveries, held)
            pipe.begin()
            self._open[pipe.pipeline] = frozenset(self._leases(deliveries))
            try:
                yield pipe.pipeline
            finally:
                del self._open[pipe.pipeline]
            done = [Settlement(delivery, Done()) for delivery in deliveries]
            await self._execute(pipe, self._settling.prepared(done, ids), deliveries)
        finally:
            await pipe.give_back()

    def check_watched(self, transaction: object, deliveries: Sequence[Delivery]) -> None:
        """Refuse a pipeline at whose end these deliveries are not acknowledged."""
        try:
            ours = self._open.get(transaction)
        except TypeError:
            ours = None  # Not even the right type.
        if ours is None:
            raise CannotJoin(
                "a message cannot be acknowledged in just any pipeline: were its lease lost, the rest would be "
                "carried out all the same. Use the pipeline of `async with store.transaction([delivery], client)`"
            )
        if not ours.issuperset(self._leases(deliveries)):
            raise CannotJoin(
                "this pipeline watches other messages: name every delivery when calling `transaction`"
            )

    def _check_one_slot(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            raise ValueError("a transaction needs at least one delivery to acknowledge")
        tags, _ = self._settling.tags(deliveries)
        if len({self._nodes.slot(tag) for tag in tags}) > 1:
            raise CannotJoin(
                "these messages are in different slots of the cluster: one transaction cannot carry both"
            )

    def _leases(self, deliveries: Sequence[Delivery]) -> list[tuple[str, bytes]]:
        return [(self._keys.of(delivery), delivery.token.bytes) for delivery in deliveries]

    async def _watch(self, pipe: WatchingPipeline, deliveries: Sequence[Delivery], held: Call) -> None:
        """Before the block runs: check the database, watch every key, check every lease."""
        try:
            await self._joining.check_ours(pipe.pipeline)
            await pipe.watch([key for key, _ in self._leases(deliveries)])
            answer = await pipe.ask(held)
        except WatchError as error:
            raise StoreUnavailable("the connection to Redis was lost: nothing was begun") from error
        except REDIRECTIONS as error:
            raise Moving from error
        except RedisClusterException as error:
            raise StoreUnavailable(
                f"the caller's client cannot reach the cluster: {type(error).__name__}"
            ) from error
        except (RedisError, OSError, TimeoutError) as error:
            better = translated(error, StoreUnavailable)
            if better is error:
                raise
            raise better from error
        _raise_for_lost(deliveries, answer)

    async def _execute(self, pipe: WatchingPipeline, settle: Call, deliveries: Sequence[Delivery]) -> None:
        if not pipe.watching:
            raise StoreUnavailable(
                "the connection on which the messages were watched was lost, or its pipeline was reset: "
                "nothing was carried out"
            )
        self._joining.check_slots(pipe.pipeline)
        try:
            *answers, settled = await pipe.execute(settle)
        except WatchError as error:
            if lost_connection(error):
                raise _uncertain() from error
            await self._tell_why(deliveries, error)
        except REDIRECTIONS as error:
            raise Moving from error
        except LOST_CONNECTION as error:
            raise _uncertain() from error
        # Anything else is about one of the caller's commands, which the server or the driver refused: none of them was
        # executed.
        else:
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            if isinstance(settled, Exception):
                raise translated(settled, StoreUnavailable)

    async def _tell_why(self, deliveries: Sequence[Delivery], error: WatchError) -> None:
        """Nothing was executed: either a lease was lost, or a key was touched otherwise."""
        (answer,) = await self._lane.run(self._settling.prepared_check(deliveries))
        try:
            _raise_for_lost(deliveries, answer)
        except LeaseLost as lost:
            raise lost from error
        raise StoreUnavailable(
            "the server gave up the transaction though no lease was lost, as it does when a slot is moved: "
            "nothing was carried out, try again"
        ) from error


def _raise_for_lost(deliveries: Sequence[Delivery], answer: bytes | str) -> None:
    letters = answer if isinstance(answer, str) else answer.decode()
    lost = [delivery.id for delivery, letter in zip(deliveries, letters, strict=True) if letter != "h"]
    if lost:
        raise LeaseLost(lost)


def _uncertain() -> NightmailError:
    return StoreUnavailable(
        "the connection was lost before Redis answered: the commands and the acknowledgement were carried out "
        "together, or neither was"
    )
