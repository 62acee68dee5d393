"""The Redis store: which connection each verb uses, and what it asks there.

    claim     one at a time, for all subscribers of the process
    settle    settlements, and renewals asked for on the event loop
    publish   publishes, timers, and what an operator asks
    listen    wake-ups; opened with the first listener
    keeper    renewals, on its own thread; open while `run_on_keeper_thread` is in use

In a cluster each of these is one connection to each primary that is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from nightmail.bell import Bell
from nightmail.clock import Clock, StoreClock
from nightmail.controls import (
    LastConsumer,
    LeasedMessage,
    MessageFacts,
    Pause,
    WorkerRecord,
    WorkerReport,
    check_pausable,
    check_pause,
    storable_reason,
)
from nightmail.errors import CannotJoin
from nightmail.findings import Finding
from nightmail.limits import CLAIM_BYTES, MAX_BODY_BYTES, check_batch, check_max_body_bytes, check_size
from nightmail.message import Delivery, Message, check_due, check_name, check_queue
from nightmail.outcome import WriteResult
from nightmail.records import (
    DeadFilter,
    DeadLetter,
    DeadSummary,
    PendingMessage,
    QueueStats,
    StoredMessage,
    Swept,
)
from nightmail.store import Capabilities, Claimed, Extend, Lingers, Settlement
from nightmail.stores.redis import schema
from nightmail.stores.redis.callers import refuse_synchronous
from nightmail.stores.redis.connect import Waiting, connector_of
from nightmail.stores.redis.examining import examine
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.requests import Commands
from nightmail.stores.redis.rights import check_rights
from nightmail.stores.redis.runtime import Runtime
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.server import check_server
from nightmail.stores.shared.server_store import ServerStore
from nightmail.stores.shared.wanted import NOTHING, wanted_of

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster
    from redis.asyncio.client import Pipeline

T = TypeVar("T")

STORE_CLOCK: Final = StoreClock()


class RedisStore(ServerStore[Runtime]):
    """Messages in Redis, under keys that begin with `{nightmail:` or as `tables` names them.

    With `wait_replicas` a publish returns once that many replicas have it, and raises `PublishUncertain` when that
    takes longer than `wait_timeout`. Both may be given in the URL.
    """

    capabilities: Final = Capabilities(
        name="redis",
        # A MULTI can carry a publish, but nothing can be read in it.
        transactions=False,
        concurrent_writers=True,
        locks_rows=False,
        repeatable_read=False,
        blocking=False,
        pushes_wakeups=True,
        embedded=False,
        connections=5,
        serial=True,
    )

    def __init__(
        self,
        source: str | Redis | RedisCluster,
        *,
        tables: str | None = None,
        clock: Clock = STORE_CLOCK,
        keep_delivered: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
        wait_replicas: int | None = None,
        wait_timeout: timedelta | None = None,
    ) -> None:
        super().__init__()
        self._max_body_bytes = check_max_body_bytes(max_body_bytes)
        found = connector_of(source)
        self._connector = replace(
            found,
            waiting=Waiting(
                found.waiting.replicas if wait_replicas is None else wait_replicas,
                found.waiting.patience if wait_timeout is None else wait_timeout,
            ),
        )
        self._keys = Keys.named(tables, self._connector.database)
        self._calls = ScriptCalls(self._keys, clock, sharded=self._connector.cluster is not None)
        self._keep_delivered = keep_delivered

    def tag(self, queue: str) -> str:
        """What this queue's keys begin with: in a cluster, your keys that begin with it can join its MULTI."""
        check_queue(queue)
        return self._keys.tag(queue)

    # ------------------------------------------------------------------------------------ its life

    @property
    def max_body_bytes(self) -> int:
        """See `Store.max_body_bytes`."""
        return self._max_body_bytes

    @property
    def listening(self) -> bool:
        """Whether wake-ups from other processes arrive."""
        return self._opened is not None and self._opened.listener.listening

    async def ping(self) -> None:
        """See `Store.ping`."""
        await self._runtime.publish.run(Commands(self._keys.meta, ("PING",)))

    def schema_sql(self, *, found: int | None = None) -> str:
        """See `Store.schema_sql`. There is nothing to run by hand: keys are made by the first message."""
        return f"# Redis has no tables. `nightmail migrate` notes the version in the key {self._keys.meta}."

    async def migrate(self, *, repair: bool = False) -> None:
        """See `Store.migrate`."""
        await self._check_servers()
        await schema.migrate(self._runtime.publish, self._calls, self._runtime.registry)

    async def check(self, *, adopt: bool = True) -> None:
        """See `Store.check`. Also refuses a server that may lose messages, and an account without rights."""
        await self._check_servers()
        await schema.check(self._runtime.publish, self._keys)
        await check_rights(self._runtime.publish, self._calls, wait=self._connector.waiting.replicas > 0)

    async def examine(self, *, processes: int = 0) -> list[Finding]:
        """See `Examined.examine`. In a cluster, of every primary."""
        waits = self._connector.waiting.replicas > 0
        each = self.capabilities.connections
        found = await schema.findings(self._runtime.publish, self._keys)
        for address in await self._runtime.nodes.all():
            at = partial(examine, address=address, waits=waits, processes=processes, each=each)
            found += await self._runtime.publish.run_at(address, at)
        return found

    async def _check_servers(self) -> None:
        cluster = self._connector.cluster is not None
        for address in await self._runtime.nodes.all():
            await self._runtime.publish.run_at(address, lambda link: check_server(link, cluster=cluster))

    # ------------------------------------------------------------------------------------- publish

    async def publish(
        self, message: Message, *, transaction: object | None = None, own: Delivery | None = None
    ) -> int | None:
        """See `Store.publish`. In a pipeline, the id that a new message gets: one with a timer id may not be stored."""
        check_size(message, self._max_body_bytes)
        if transaction is not None:
            refuse_synchronous(transaction)
            return await self._runtime.joining.publish(transaction, message, own)
        if message.timer_id is None and own is None:
            return await self._runtime.coalescer.publish(message)
        return await self._runtime.publishing.publish(message, own)

    async def publish_batch(
        self, messages: Sequence[Message], *, transaction: object | None = None
    ) -> list[int]:
        """See `Store.publish_batch`. In a cluster, all or none of each slot."""
        check_batch(messages, self._max_body_bytes)
        if transaction is not None:
            refuse_synchronous(transaction)
        if not messages:
            return []
        if transaction is not None:
            return await self._runtime.joining.publish_batch(transaction, messages)
        return await self._runtime.publishing.publish_batch(messages)

    # ---------------------------------------------------------------------------------- under a lease

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """See `Store.claim`. In a cluster, a node that does not answer stops no queue of the others."""
        wanted = wanted_of(queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes)
        return NOTHING if wanted is None else await self._runtime.claims.claim(wanted)

    async def look_ahead(self, queues: Sequence[str]) -> dict[str, timedelta]:
        """See `LooksAhead.look_ahead`. In a cluster always now: each worker claims."""
        return await self._runtime.claims.look_ahead(queues)

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall`."""
        return await self._to_the_end(self._runtime.claims.recall(queues, token))

    async def claim_dead(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """See `Store.claim_dead`. In a cluster, the longest due of one slot first."""
        wanted = wanted_of(queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes)
        return NOTHING if wanted is None else await self._runtime.letters.claim(wanted)

    async def recall_dead(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall_dead`."""
        return await self._to_the_end(self._runtime.letters.recall(queues, token))

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        """See `Store.settle`."""
        if not batch:
            return []
        runtime = self._runtime
        return await runtime.settling.settle(runtime.settle, runtime.registry, batch)

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """See `Store.extend`."""
        return await self._runtime.settling.extend(self._runtime.settle, deliveries, lease)

    def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AbstractAsyncContextManager[None]:
        """See `Store.run_on_keeper_thread`."""
        return self._runtime.keeper.run_on_keeper_thread(work, lingers=lingers)

    async def hold(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """See `Store.hold`. Not possible here: a pipeline locks nothing."""
        raise CannotJoin(
            "a pipeline cannot hold a message: nothing is locked before it is executed. `transaction` watches it"
        )

    def transaction(
        self, deliveries: Sequence[Delivery], client: object
    ) -> AbstractAsyncContextManager[Pipeline]:
        """A pipeline of this client for the block; at the end it is executed and these deliveries are `Done`.

        Raises `LeaseLost` before the block runs, or at its end: then nothing in the pipeline was executed, nor is it
        when the block raises. `StoreUnavailable` at the end says whether that is certain. If one of the caller's
        commands fails, its error is raised, but nothing is undone, as in every MULTI.

        In a cluster the caller's keys begin with the queue's `tag`.
        """
        return self._runtime.acking.transaction(deliveries, client)

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """See `Store.ack`. Only in the pipeline of `transaction`, at whose end they are acknowledged anyway."""
        self._runtime.acking.check_watched(transaction, deliveries)

    # -------------------------------------------------------------------------------------- timers

    async def cancel(self, queue: str, timer_id: str, *, transaction: object | None = None) -> bool:
        """See `Store.cancel`."""
        _check_named(queue, timer_id)
        _refuse(transaction, "cancel")
        return await self._runtime.timers.cancel(queue, timer_id)

    async def cancel_all(
        self, queue: str, *, limit: int | None = None, transaction: object | None = None
    ) -> int:
        """See `Store.cancel_all`."""
        check_queue(queue)
        _refuse(transaction, "cancel_all")
        if limit is not None:
            return await self._runtime.timers.cancel_some(queue, limit)
        return await self._to_the_end(self._runtime.timers.cancel_all(queue))

    async def reschedule(
        self, queue: str, timer_id: str, due: datetime | timedelta, *, transaction: object | None = None
    ) -> bool:
        """See `Store.reschedule`."""
        _check_named(queue, timer_id)
        check_due(due)
        _refuse(transaction, "reschedule")
        return await self._runtime.timers.reschedule(queue, timer_id, due)

    # -------------------------------------------------------------------------------------- looking

    def listen(self, queues: Sequence[str]) -> Bell:
        """See `Store.listen`."""
        return self._runtime.listener.bell(*queues)

    async def peek(
        self,
        queue: str | None = None,
        *,
        timer_id: str | None = None,
        due_before: datetime | None = None,
        limit: int = 100,
        cursor: tuple[datetime, int] | None = None,
        transaction: object | None = None,
    ) -> list[PendingMessage]:
        """See `Inspection.peek`."""
        _refuse(transaction, "peek")
        return await self._runtime.inspecting.peek(
            queue, timer_id=timer_id, due_before=due_before, limit=limit, cursor=cursor
        )

    async def find(self, ids: Sequence[int]) -> list[StoredMessage]:
        """See `Inspection.find`."""
        return await self._runtime.inspecting.find(ids)

    async def dead(
        self,
        which: DeadFilter,
        *,
        limit: int = 100,
        cursor: int | None = None,
        max_bytes: int = CLAIM_BYTES,
    ) -> list[DeadLetter]:
        """See `Inspection.dead`."""
        return await self._runtime.inspecting.dead(which, limit=limit, cursor=cursor, max_bytes=max_bytes)

    async def summarize_dead(self, which: DeadFilter, *, limit: int = 100) -> DeadSummary:
        """See `Inspection.summarize_dead`."""
        return await self._runtime.inspecting.summarize_dead(which, limit=limit)

    async def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None = None, keep_timer_ids: bool = True
    ) -> list[int]:
        """See `Inspection.redrive`. All of them in one step, except to another slot of a cluster.

        There each is held, stored, and only then deleted. If that is interrupted, which raises `StoreUnavailable`, a
        dead letter may be held for a minute, and its message may already be stored: moving it to the same queue again
        completes the move and stores nothing twice. At worst, if something else is done with the dead letter then, it
        is delivered twice. It is never lost.
        """
        if to is not None:
            check_queue(to)
        return await self._to_the_end(
            self._runtime.redriving.redrive(letters, to, keep_timer_ids=keep_timer_ids)
        )

    async def purge(self, which: DeadFilter, *, limit: int) -> int:
        """See `Inspection.purge`."""
        return await self._to_the_end(self._runtime.sweeping.purge(which, limit=limit))

    async def sweep(self, *, older_than: timedelta, limit: int) -> Swept:
        """See `Inspection.sweep`."""
        return await self._to_the_end(self._runtime.sweeping.sweep(older_than=older_than, limit=limit))

    async def stats(self) -> dict[str, QueueStats]:
        """See `Inspection.stats`."""
        return await self._runtime.inspecting.stats()

    # ------------------------------------------------------------------------------------- steering

    async def pause(
        self,
        queue: str,
        *,
        ordering_key: str | None = None,
        until: datetime | timedelta | None = None,
        by: str,
        reason: str | None = None,
        automatic: bool = False,
    ) -> None:
        """See `Control.pause`."""
        check_pause(queue, ordering_key, until, by, automatic=automatic)
        await self._to_the_end(
            self._runtime.controlling.pause(
                queue, ordering_key, until, by, storable_reason(reason), automatic=automatic
            )
        )

    async def resume(self, queue: str, *, ordering_key: str | None = None, automatic: bool = False) -> bool:
        """See `Control.resume`."""
        check_pausable(queue, ordering_key)
        return await self._runtime.controlling.resume(queue, ordering_key, automatic=automatic)

    async def probe_again(self, probe: Delivery) -> None:
        """See `Control.probe_again`."""
        await self._runtime.controlling.probe_again(probe)

    async def pauses(self, queue: str | None = None) -> list[Pause]:
        """See `Control.pauses`."""
        return await self._runtime.controlling.pauses(queue)

    async def request_stop(self, id_: int, *, by: str) -> bool:
        """See `Control.request_stop`."""
        check_name("by", by)
        return await self._to_the_end(self._runtime.controlling.request_stop(id_, by))

    async def report(self, worker: WorkerReport) -> None:
        """See `Control.report`."""
        await self._runtime.controlling.report(worker)

    async def sign_off(self, worker_id: str) -> None:
        """See `Control.sign_off`."""
        await self._runtime.controlling.sign_off(worker_id)

    async def workers(self) -> list[WorkerRecord]:
        """See `Control.workers`."""
        return await self._runtime.controlling.workers()

    async def last_consumers(self) -> dict[str, LastConsumer]:
        """See `Control.last_consumers`."""
        return await self._runtime.controlling.last_consumers()

    async def leases(self, *, limit: int = 1000) -> list[LeasedMessage]:
        """See `Control.leases`."""
        return await self._runtime.controlling.leases(limit)

    async def facts(self, id_: int) -> MessageFacts:
        """See `Control.facts`. Nothing is ever locked here."""
        return await self._runtime.controlling.facts(id_)

    # ------------------------------------------------------------------------------------- inside

    async def _to_the_end(self, verb: Coroutine[Any, Any, T]) -> T:
        return await self._runtime.to_the_end.run(verb)

    def _make(self) -> Runtime:
        return Runtime(
            self._connector,
            self._keys,
            self._calls,
            keep_delivered=self._keep_delivered,
            max_body_bytes=self._max_body_bytes,
        )


def _check_named(queue: str, timer_id: str) -> None:
    check_queue(queue)
    check_name("timer_id", timer_id)


def _refuse(transaction: object | None, verb: str) -> None:
    if transaction is not None:
        raise CannotJoin(
            f"{verb} cannot join a pipeline: what it answers is known only when the pipeline is executed. Call it "
            "without one, before or after"
        )
