"""What those ask who steer the store: pauses, stops, workers, and what holds a message back."""

from __future__ import annotations

from datetime import datetime, timedelta
from heapq import nsmallest
from operator import attrgetter
from uuid import UUID

from nightmail.controls import (
    CONSUMERS_KEPT_FOR,
    FORGOTTEN_AFTER,
    MOST_AHEAD,
    LastConsumer,
    LeasedMessage,
    MessageFacts,
    Pause,
    WorkerRecord,
    WorkerReport,
    consumption,
    latest_of_each,
    worker_of,
)
from nightmail.message import Delivery
from nightmail.stores.redis.control_records import (
    consumers_left,
    encoded_report,
    end_arguments,
    leased_messages,
    pause_field,
    pauses_of,
    worker_records,
)
from nightmail.stores.redis.ids import digits
from nightmail.stores.redis.lane import Lane, call_each
from nightmail.stores.redis.letter_records import letter_records
from nightmail.stores.redis.nodes import Nodes
from nightmail.stores.redis.records import stored_messages, text
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.requests import Argument, Reply
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.times import micros, time_micros, time_of


class Controlling:
    """The verbs of `Control`, on the connection for publishes."""

    def __init__(self, lane: Lane, registry: Registry, calls: ScriptCalls, nodes: Nodes) -> None:
        self._lane = lane
        self._registry = registry
        self._calls = calls
        self._nodes = nodes

    async def pause(
        self,
        queue: str,
        ordering_key: str | None,
        until: datetime | timedelta | None,
        by: str,
        reason: str | None,
        *,
        automatic: bool,
    ) -> None:
        """See `Control.pause`. Listed first: a queue may be paused before it has a message."""
        await self._registry.enter([queue])
        await self._one(
            "pause",
            self._calls.keys.tag(queue),
            pause_field(ordering_key, automatic=automatic),
            *end_arguments(until),
            by,
            "" if reason is None else f"!{reason}",
        )

    async def resume(self, queue: str, ordering_key: str | None, *, automatic: bool) -> bool:
        """See `Control.resume`."""
        field = pause_field(ordering_key, automatic=automatic)
        return bool(await self._one("resume", self._calls.keys.tag(queue), field))

    async def probe_again(self, probe: Delivery) -> None:
        """See `Control.probe_again`."""
        await self._one("probe_again", self._calls.keys.tag(probe.queue), time_micros(probe.claimed_at))

    async def pauses(self, queue: str | None) -> list[Pause]:
        """See `Control.pauses`."""
        replies = await self._each("list_pauses", [queue] if queue is not None else None)
        return [pause for name, found in replies for pause in pauses_of(found, name)]

    async def request_stop(self, id_: int, by: str) -> bool:
        """See `Control.request_stop`. An id does not say in which queue the message is: each is asked."""
        replies = await self._each("request_stop", None, digits(id_), by)
        return any(found for _, found in replies)

    async def report(self, worker: WorkerReport) -> None:
        """See `Control.report`."""
        said = encoded_report(worker)
        lengths = micros(FORGOTTEN_AFTER), micros(CONSUMERS_KEPT_FOR)
        await self._one("report", self._calls.keys.registry_tag, worker.id, said, *lengths)

    async def sign_off(self, worker_id: str) -> None:
        """See `Control.sign_off`."""
        await self._one("sign_off", self._calls.keys.registry_tag, worker_id, micros(CONSUMERS_KEPT_FOR))

    async def workers(self) -> list[WorkerRecord]:
        """See `Control.workers`."""
        return await self._seen_within(FORGOTTEN_AFTER)

    async def last_consumers(self) -> dict[str, LastConsumer]:
        """See `Control.last_consumers`. Workers are read first: one that leaves in between is read twice."""
        reported = await self._seen_within(CONSUMERS_KEPT_FOR)
        left = await self._one("last_consumers", self._calls.keys.registry_tag, micros(CONSUMERS_KEPT_FOR))
        return latest_of_each([*consumers_left(left), *map(consumption, reported)])

    async def leases(self, limit: int) -> list[LeasedMessage]:
        """See `Control.leases`."""
        if limit <= 0:
            return []
        held = [
            message
            for name, found in await self._each("leases", None, limit)
            for message in leased_messages(found, name)
        ]
        return nsmallest(limit, held, key=attrgetter("claimed_at", "id"))

    async def facts(self, id_: int) -> MessageFacts:
        """See `Control.facts`. The dead letter is of interest only for a message that is gone."""
        # No message has the id 0: what is asked for is the clock, and no queue need be asked.
        replies = await self._each("facts", None if id_ > 0 else [], digits(id_), MOST_AHEAD)
        for name, found in replies:
            if found[2]:
                return _facts(name, found)
        if not replies:
            # Without a queue there is a time, too.
            tag = self._calls.keys.registry_tag
            replies = [("", await self._one("facts", tag, digits(id_), MOST_AHEAD))]
        letters = [record.letter(name) for name, found in replies for record in letter_records(found[3])]
        delivered = [time_of(float(found[1])) for _, found in replies if found[1]]
        return MessageFacts(
            now=time_of(float(replies[0][1][0])),
            message=None,
            letter=max(letters, key=attrgetter("id"), default=None),
            delivered_at=max(delivered, default=None),
        )

    async def _seen_within(self, length: timedelta) -> list[WorkerRecord]:
        return worker_records(await self._one("workers", self._calls.keys.registry_tag, micros(length)))

    async def _one(self, script: str, tag: str, *arguments: Argument) -> Reply:
        (answer,) = await self._lane.run(self._calls.call(script, [tag], *arguments))
        return answer

    async def _each(
        self, script: str, queues: list[str] | None, *arguments: Argument
    ) -> list[tuple[str, Reply]]:
        """What this script answers for each of these queues, or for all that are listed."""
        names = await self._registry.queues() if queues is None else queues
        calls = [self._calls.call(script, [self._calls.keys.tag(name)], *arguments) for name in names]
        return list(zip(names, await call_each(self._lane, self._nodes, calls), strict=True))


def _facts(queue: str, found: Reply) -> MessageFacts:
    now, _, message, token, stop, first, owner, ahead, *pauses = found
    (stored,) = stored_messages(message, queue)
    return MessageFacts(
        now=time_of(float(now)),
        message=stored,
        worker_id=worker_of(UUID(bytes=token)) if token else None,
        stop_requested_by=text(stop) if stop else None,
        key_held_by=next(stored_messages(first, queue), None),
        superseded_by=int(owner, 16) if owner else None,
        ahead=int(ahead),
        pauses=tuple(pauses_of(pauses, queue)),
    )
