"""The contract that every store keeps. These docstrings are normative; the conformance suite enforces them.

Words. A message is *waiting* when it has no lease or its lease has expired, *running* while a lease on it
has not expired. It is *available* when it is waiting and due. A *timer* is a message with a `timer_id`; at
most one message of a queue *owns* a timer id. The row's id is the message's identity and its generation: a
timer id may pass to a newer message, an id never does.

Time. Every comparison uses the store's clock at the statement, every stored time the store's clock at the
write (not at the start of a transaction), unless the store was given a `Clock` of its own. Delays are rounded
up to the microsecond: never early.

Transactions. `transaction` is whatever the caller's transaction lives in. With one, the store takes part in
it and never flushes, commits, rolls back or begins; what cannot join is refused with `CannotJoin`,
`NotInTransaction` or `OtherDatabase` before anything is written. Without one, the verb commits by itself.
A transaction of synchronous code comes as `Blocking(session)`, to `publish`, `publish_batch`, `cancel`,
`reschedule`, `hold` and `ack` alone.

Dead letters. `claim_dead` leases them and returns each as a `DeadDelivery`, which `settle`, `extend`, `hold`
and `ack` take like any other; a batch is all of one kind. A dead letter is *held* while a lease on it has not
expired.

Cancellation. Cancelling the caller never leaves a verb half done: it is carried out as a whole or not at all.
A connection in doubt is thrown away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol, TypeAlias, runtime_checkable
from uuid import UUID

from nightmail.bell import Bell
from nightmail.controls import LastConsumer, LeasedMessage, MessageFacts, Pause, WorkerRecord, WorkerReport
from nightmail.limits import CLAIM_BYTES
from nightmail.message import Delivery, Message
from nightmail.outcome import Outcome, WriteResult
from nightmail.records import (
    DeadFilter,
    DeadLetter,
    DeadSummary,
    PendingMessage,
    QueueStats,
    StoredMessage,
    Swept,
)

CLOSE_SECONDS: Final = 2.0
"""How long `Store.close` may take in all."""
RENEW_AGAIN_SECONDS: Final = 1.0
"""How soon, at the latest, a keeper asks again for a lease whose renewal was `BUSY`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store can do, and what it costs. Conformance tests that do not apply are skipped by these fields."""

    name: str
    transactions: bool
    """Whether a caller's own transaction can be joined."""
    concurrent_writers: bool
    """Whether an open transaction of a caller leaves other writers free. SQLite has one writer at a time."""
    locks_rows: bool
    """Whether an `ack` or `hold` in a caller's open transaction keeps other workers away from the message."""
    repeatable_read: bool
    """Whether callers may run at repeatable read, where a row changed since their snapshot is refused."""
    blocking: bool
    """Whether synchronous code can publish and acknowledge in its own transaction (`Blocking`)."""
    pushes_wakeups: bool
    """Whether a publish from another process rings a bell without polling."""
    embedded: bool
    """Whether it lives in the process, so that its tables may be created unasked."""
    connections: int
    """How many connections one process needs at most, however many subscribers and handlers it has."""
    serial: bool = False
    """Whether a server carries out one call after the other, so that a long claim holds up all its clients.

    Claims are short then, and one is carried out while the answer of the one before is read.
    """


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim took, and when it is worth looking again."""

    deliveries: Sequence[Delivery]
    next_in: timedelta | None
    """Until the next message of these queues is due or the next lease on one expires, this claim's included.

    Messages behind another of their ordering key may be left out: they cannot be next.

    Never past the next full look, where this claim skipped it (see `Store.claim`).

    `None` when nothing is known to come, and when the claim was full.
    """
    full: bool = False
    """It stopped at `limit`, at `max_bytes`, or before it had looked everywhere, perhaps with nothing taken.

    There may be more: look again as soon as there is room.
    """
    probe: bool = False
    """Its one message is the probe of a queue that is paused automatically (see `Store.claim`)."""


@dataclass(slots=True)
class Settlement:
    """How one delivery ended. Not frozen: one is made for every message, and a frozen one takes three times as long."""

    delivery: Delivery
    outcome: Outcome
    repeated: bool = False
    """Sent before, and the reply was lost: a message that is gone may have been removed by that first write."""


Extend: TypeAlias = Callable[[Sequence[Delivery], timedelta], Awaitable[Sequence[WriteResult]]]
Lingers: TypeAlias = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Blocking:
    """A caller's transaction in synchronous code: the work is done when the call returns.

    A verb that is given one never suspends, and the store need not be open. One that was opened before refuses
    tables other than its own; one that never was takes those that the session sees, and refuses where there are none.
    """

    session: object


class Source(Protocol):
    """What a worker takes messages from."""

    @property
    def capabilities(self) -> Capabilities:
        """See `Store.capabilities`."""
        ...

    @property
    def look_interval(self) -> timedelta:
        """See `Store.look_interval`."""
        ...

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """See `Store.claim`."""
        ...

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall`."""
        ...

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        """See `Store.settle`."""
        ...

    def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AbstractAsyncContextManager[None]:
        """See `Store.run_on_keeper_thread`."""
        ...

    def listen(self, queues: Sequence[str]) -> Bell:
        """See `Store.listen`."""
        ...


class Store(Source, Protocol):
    """Where messages live, for the engine."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        ...

    @property
    def max_body_bytes(self) -> int:
        """The largest body that this store takes at publish and reads at claim. Give every process the same."""
        ...

    @property
    def look_interval(self) -> timedelta:
        """The longest an idle worker may go without looking: 5 s, 1 s while wake-ups cannot be received.

        A constant of the schema, not a knob: publishers rely on it when they leave out a wake-up.
        """
        ...

    async def open(self) -> None:
        """Make the store usable on this event loop. Opening an open store does nothing."""
        ...

    async def close(self) -> None:
        """Give back every connection and thread. A closed store can be opened again.

        It takes `CLOSE_SECONDS` at most: connections are closed side by side, and one whose server does not answer is
        dropped. A shutdown must end before the process is killed. A caller that cannot wait cancels it: connections
        that are still open are dropped then, and threads end by themselves. Closing a closed store does nothing.
        """
        ...

    async def ping(self) -> None:
        """Return when the store answers; raise `StoreUnavailable` when it does not."""
        ...

    async def migrate(self, *, repair: bool = False) -> None:
        """Create the tables, or bring them up to this version. Running it again changes nothing.

        With `repair`, indexes that were dropped are made again. `NotAllowed` when the account may not do that.
        """
        ...

    def schema_sql(self, *, found: int | None = None) -> str:
        """The statements that `migrate` runs on an empty database, or on tables of version `found`.

        To read, or to run by hand.
        """
        ...

    async def check(self, *, adopt: bool = True) -> None:
        """Raise `SchemaMissing`, `SchemaOutdated` or `SchemaDrift` unless the tables are what this version makes.

        Tables that Alembic made lack what it cannot make, such as the row with their version. That is added; with
        `adopt=False` they pass as they are, and nothing is written.
        """
        ...

    async def publish(
        self, message: Message, *, transaction: object | None = None, own: Delivery | None = None
    ) -> int | None:
        """Store a message and return its id, or `None` when its timer id was taken and nothing was stored.

        It is due at `due`; a delay counts from this call; a moment in the past, and a delay of zero or less, mean
        now and are stored as now.

        A free timer id is taken. When a *waiting* message owns it: `skip` stores nothing; `raise` raises
        `TimerExists` and leaves the caller's transaction usable; `replace` overwrites it in place (body,
        headers, due time, publish time, priority, ordering key, expiry; both counters restart at 0; an expired
        lease is cleared, so that its holder is told `LOST`; it keeps its id and its place, and frees an
        ordering key that it does not keep); `earliest` and `latest` do the same when the new due time is
        strictly earlier or later, and store nothing otherwise.

        When a message *running elsewhere* owns it: `skip` and `raise` as above. The others store a new message
        which takes the timer id, without comparing due times. The running one is superseded: it keeps id, token
        and lease and may end by `Done` or `Dead`; whatever would bring it back makes it due at once, and the next
        claim returns it with `superseded` set, to be dropped without running.

        When `own`, the delivery of the handler that publishes, owns it: this is a re-arm, whatever
        `on_conflict` says. A new message takes the timer id; the running one goes on without one and keeps
        its retries. `own` fences every publish it is given to: if its lease no longer holds, `LeaseLost` is
        raised and nothing is stored. When `own` does not (or no longer) own the timer id, the rules above apply.
        A `DeadDelivery` fences by the lease on its dead letter, and never owns a timer id.

        With `dedup_for` the timer id also counts as taken for that long after a publish that stored
        something, even when the message is gone by then; a publish without it sees the window too, a
        `replace`, `earliest` or `latest` and a re-arm do not. A refused publish does not prolong a window.

        A body larger than the store's `max_body_bytes` raises `MessageTooLarge` before anything is written.

        Without a transaction, a lost connection raises `PublishUncertain` when the message may have been
        stored, and `StoreUnavailable` when it was not.

        Bells for the queue ring when the message is due within the notice horizon (60 s).
        """
        ...

    async def publish_batch(
        self, messages: Sequence[Message], *, transaction: object | None = None
    ) -> list[int]:
        """Store messages without timer ids, all or none, in one statement; their ids, in order.

        `ValueError` if one has a timer id, `MessageTooLarge` and `BatchTooLarge` (more than 50,000 messages or
        32 MiB), all before anything is written. An empty batch is `[]` and touches nothing.
        """
        ...

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """Lease up to `limit` available messages of these queues, each until `lease` from now, under `token`.

        It stops before bodies and headers together exceed `max_bytes`, but takes at least one message: the claim
        is then `full`, as one that stopped at `limit` is. The share of the oldest (below) may then be larger.

        Each claimed message has its `deliveries` raised by one. Concurrent claims never return the same
        message and never wait for one another; rows locked by others are skipped. `token` must be new: it is
        made by the caller so that `recall` can find what a lost reply took.

        Order within a queue: higher priority first, then due time, then id; but of every eight messages
        claimed from a queue (counted across claims) one is the oldest due of all priorities, so that nothing
        starves. That share comes first in the result. Queues are served in rotation.

        Of the messages with one `ordering_key` in a queue at most one is ever leased. They go in the order
        of their ids among those that are due at the claim. One that was claimed holds its key, and only its
        key, through retry, postponement, hand-back and lease expiry, until it is done, dead, cancelled or
        dropped as superseded; one that becomes visible late with a lower id goes next, never at the same time.
        Priority does not overtake an ordering key.

        A message that is superseded or past its expiry is returned like any other; the worker decides. If it was a
        probe, that says nothing of the queue: see `Control.probe_again`.

        A row that cannot be read, because other software wrote it, does not fail the claim: it becomes a dead letter
        (`unreadable`), with sane values in place of invalid ones, and the others are returned.
        So does a body over the store's `max_body_bytes`, or headers over 1 MiB (`too_large`), without being read into
        memory. Such dead letters count as given up: `claim_dead` skips them. Counters stop at their column's limit.

        The cost of a claim follows `limit` and the number of queues, not how many messages wait, how many of them
        share one ordering key, or how many others hold locks.

        Nothing is claimed of a paused queue or a paused ordering key (see `Control.pause`), and what is due there does
        not count for `next_in`; the end of the pause does. A queue whose automatic pause is past its `until`, and that
        is not paused otherwise, is probed: the claim takes one message of that queue and nothing else, sets `probe`,
        and renews the pause for as long as it was last set for, in one step, so that one process probes at a time.
        Where there is nothing to take the pause stays as it is.

        A claim that is not full has found all there was, with one exception (below). A full one may have passed over
        older messages that became available late, but for a second at most: newer claims never hide them for longer.

        The exception: a store may keep a mark of how far its claims have come. Where a full look, from the beginning,
        is expensive, a claim that is not full has found all there was ahead of that mark, what was due no more than a
        second before it, what this process handed back, and what waited for an ordering key that this process freed
        by `settle`. Anything else that became available behind the mark (a transaction that committed late, an expired
        lease, a lock that was rolled back, what other processes handed back or freed) is found by the next full look.
        That is due one second after the last one, or ten times the cost of a full look where that is longer; the first
        claim from then on makes it, and `next_in` does not exceed the time until then. The first claim, and the first
        after an error, after missed wake-ups and after the store's clock went back, is a full look. A full look that
        takes too long to finish does not keep claims from what is ahead of the mark.
        """
        ...

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """Hand back what a claim under `token` leased, as `Release` does; how many. For when its reply was lost.

        Nothing is lost by it: each message keeps its place and the counters it had before that claim. One that was
        settled or taken over since is left alone, and so is one that an open transaction has locked: its lease
        ends by itself.
        """
        ...

    async def claim_dead(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """Lease up to `limit` dead letters of these queues, as `DeadDelivery`s, the longest due first.

        A dead letter may be claimed from the moment the message died, by one holder at a time like a message, and
        again each time it is brought back, but not once it was given up. Keys and priorities mean nothing here.
        One whose body or headers are so large that a claim of messages would not read them is given up, unread.
        Leases, tokens, skipped locks, `max_bytes`, `full` and `next_in` are those of `claim`.
        """
        ...

    async def recall_dead(self, queues: Sequence[str], token: UUID) -> int:
        """`recall`, for what a `claim_dead` under `token` leased."""
        ...

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        """Write how these deliveries ended; a `WriteResult` for each, in order.

        A fixed number of round trips whatever the size of the batch. Each write is fenced by id and token
        and by nothing else: a lease that expired but was not taken over still settles.

        `Done` removes the message (into the delivered history, where that is kept). `Retry` counts one
        attempt, sets `deliveries` to 0 and makes it due `after` from now. `Postpone` sets both counters to 0
        and makes it due `after` from now. `Dead` moves it to the dead letters in the same step, counting one
        attempt if its handler ran. Whatever counts an attempt notes when this delivery was claimed as the
        last attempt, and as the first if there was none before; `Postpone` forgets both. `Release` undoes the
        claim: the message has the `deliveries` it had before, and its due time, and so its place, is unchanged.
        `Retry`, `Postpone` and `Release` clear the lease; `Retry` and `Postpone` make a superseded message due at once.

        `Retry` also notes its error, or that there was none, in place of the one before it
        (`StoredMessage.last_error`): one line of at most 255 characters, with those spelled out that cannot be printed
        (`describing.last_error`). `Postpone` forgets it, as does a publish that replaces the message; `Release` keeps
        it; a dead letter has only the error of its `Dead`, and a redriven message none.

        `LOST` is answered only after a second check, `BUSY` for a row that an open transaction has locked (it
        does not hold up the others in the batch), and `UNKNOWN` instead of `LOST` for a `repeated` settlement.
        One row that the store refuses does not fail the rest of the batch.

        Of a dead letter, `Done` removes it, and `Retry`, `Postpone` and `Release` do to it, and to the counters of
        its `DeadDelivery`, what they do to a message, except that no error is noted. `Dead` gives it up: it stays
        among the dead letters as it was, its own reason and error included, without a lease, and is never claimed
        again.

        Whatever becomes available rings, as a publish does; a dead letter rings for the queue in which the message
        died. A freed ordering key always rings: a message that waits for it may be about to commit, unseen. The same
        holds for `ack`, `cancel`, `cancel_all`, `reschedule` and a publish that replaces.
        """
        ...

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """Extend these leases until `lease` from now, never shortening one; a `WriteResult` for each, in order.

        Fenced like `settle`. It never waits: a locked row is `BUSY`. `STOP` in place of `WRITTEN` is for a message that
        an operator wants stopped (`Control.request_stop`).
        """
        ...

    def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Run `work(extend)` until the block is left, where a blocked event loop cannot starve it.

        A real store runs it on a thread and a connection of its own, one for the whole process; the memory
        store runs it on the caller's loop. It is cancelled when the block is left.

        Unless `lingers()`, which is called then, says that it is still needed: then the work goes on, with its
        thread and its connection, until it ends by itself or the process does. Neither leaving the block nor
        `close` waits for it or ends it.
        """
        ...

    async def hold(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """Lock these messages in the caller's transaction, or raise `LeaseLost` naming those that were lost.

        A caller at repeatable read holds first: a lease renewed after its snapshot would refuse its `ack`.
        """
        ...

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """Settle these as `Done` inside the caller's transaction: all, or `LeaseLost` naming the lost ones.

        While that transaction is open its row locks replace the leases: no worker takes the messages over. A store
        without row locks (`locks_rows`) accepts renewals meanwhile without failing the transaction.
        After a rollback they are as before; a commit that frees an ordering key rings.
        """
        ...

    async def cancel(self, queue: str, timer_id: str, *, transaction: object | None = None) -> bool:
        """Remove the waiting owner of this timer id and end its dedup window; whether this call removed one.

        A running message is left alone (`False`); an expired lease does not protect.
        """
        ...

    async def cancel_all(
        self, queue: str, *, limit: int | None = None, transaction: object | None = None
    ) -> int:
        """Remove every waiting message of this queue, and their dedup windows; how many. Running ones stay.

        With `limit` at most so many, whichever are found first; 0 only when none waits. Without `limit` and
        `transaction` a store may go in portions: what is published meanwhile stays, an error may leave the rest, and a
        caller that is cancelled does not stop it.
        """
        ...

    async def reschedule(
        self, queue: str, timer_id: str, due: datetime | timedelta, *, transaction: object | None = None
    ) -> bool:
        """Move the waiting owner of this timer id to another due time; whether one moved.

        It keeps its counters; an expired lease is cleared. A running message is left alone (`False`).
        """
        ...

    def listen(self, queues: Sequence[str]) -> Bell:
        """A bell for these queues; it rings while it is used as a context manager.

        After a reconnect it rings at once: anything may have been missed.
        """
        ...


class Inspection(Protocol):
    """The same store, for an operator. Nothing here takes a lease, or disturbs the holder of one."""

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
        """Waiting messages by due time, then id, without leasing them; superseded ones are left out.

        With `timer_id`, only its owner. With `cursor`, the due time and the id of the last one seen, only those after
        it, whether or not that one is still there. With a transaction, its own uncommitted changes are seen.
        """
        ...

    async def find(self, ids: Sequence[int]) -> list[StoredMessage]:
        """The messages with these ids, waiting, running or superseded, by id. Those that are gone are left out."""
        ...

    async def dead(
        self,
        which: DeadFilter,
        *,
        limit: int = 100,
        cursor: int | None = None,
        max_bytes: int = CLAIM_BYTES,
    ) -> list[DeadLetter]:
        """Dead letters, newest first; `cursor` is the id of the last one seen.

        A page ends before bodies and headers exceed `max_bytes`, but has at least one dead letter while there are any:
        only an empty page is the end.
        """
        ...

    async def summarize_dead(self, which: DeadFilter, *, limit: int = 100) -> DeadSummary:
        """How many of these dead letters there are, and the `limit` largest groups of them.

        A group has one queue, one reason and one fingerprint (see `fingerprint`). Of groups of one size the one with
        the higher `newest` comes first.
        """
        ...

    async def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None = None, keep_timer_ids: bool = True
    ) -> list[int]:
        """Move dead letters back among the messages, to `to` or where they died; the ids of those that moved.

        Each moves as a whole or not at all. A moved one is a new message: a new id, in the order of `letters`, due and
        published now, counters at 0, no expiry, last in line for its ordering key; its headers tell where it comes
        from (`redriven_headers`). A dead letter that is held, or gone, is skipped. One whose timer id is taken in the
        target queue stays dead; so do all but the last of several in `letters` with one timer id. Without
        `keep_timer_ids` a dead letter moves without its timer id. Dedup windows are neither checked nor changed.

        Whatever moved rings.
        """
        ...

    async def purge(self, which: DeadFilter, *, limit: int) -> int:
        """Delete at most `limit` of these dead letters, oldest first; how many. A held one stays."""
        ...

    async def sweep(self, *, older_than: timedelta, limit: int) -> Swept:
        """Delete at most `limit` of each: what was delivered, and what died and is not held, longer ago than that,
        and the dedup windows that have ended. A waiting or running message is never touched.
        """
        ...

    async def stats(self) -> dict[str, QueueStats]:
        """The statistics of each queue that has anything in it."""
        ...


@runtime_checkable
class LooksAhead(Protocol):
    """A store that tells for many queues at once when something is due there. Idle workers then share their looks."""

    @property
    def look_interval(self) -> timedelta:
        """See `Store.look_interval`."""
        ...

    async def look_ahead(self, queues: Sequence[str]) -> dict[str, timedelta]:
        """How long until a claim of each of these queues may find something: zero if now, left out if nothing is known.

        It takes and changes nothing. It may be too early, for instance where messages wait in a long line or where it
        is expensive to know, but never too late: until then a claim finds only what is written after this call.
        """
        ...


@runtime_checkable
class Control(Protocol):
    """The same store, for those who steer it and ask why. What is not used costs a message nothing."""

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
        """Claim nothing of this queue, or of this ordering key in it, until then or until `resume`; and ring.

        Everything else goes on: publish, timers, dedup windows, dead letters, and what runs already. A pause survives
        restarts. Pausing again overwrites `until`, `by` and `reason`, and keeps `since`. An `until` that is not in the
        future ends the pause at once.

        An automatic pause is another pause of the same queue: neither replaces or ends the other, and nothing is
        claimed while either is in force. Its `until` is a delay, after which the queue is probed (see `Store.claim`),
        and it is over only when it is resumed. `ValueError` for one of an ordering key, or without a positive delay.
        """
        ...

    async def resume(self, queue: str, *, ordering_key: str | None = None, automatic: bool = False) -> bool:
        """End this pause, and ring; whether there was one in force. Without `automatic`, that of a person."""
        ...

    async def probe_again(self, probe: Delivery) -> None:
        """This probe ended without running: let the next one of its queue through at once, and ring.

        The automatic pause keeps its length. It is left alone if it was set, or renewed for another probe, since this
        one was claimed. Without this call the next probe comes after a whole pause, as after one whose process died.
        """
        ...

    async def pauses(self, queue: str | None = None) -> list[Pause]:
        """The pauses in force: by queue, the whole queue before its ordering keys, a person's before an automatic one.

        A person's pause is in force until its `until`, an automatic one until it is resumed.
        """
        ...

    async def request_stop(self, id_: int, *, by: str) -> bool:
        """Ask the holder of this running message to stop it; whether it runs.

        The holder is told by its next `extend`, and by each one after that. The request stays with the message until
        that is gone, also when it is claimed again; a publish that replaces it ends the request.
        """
        ...

    async def report(self, worker: WorkerReport) -> None:
        """Note that this process is alive, and what it says about itself. Those not seen for a day are forgotten.

        Their queues, and those that this process no longer consumes, keep a record of it: see `last_consumers`. Nothing
        else of that is written here: a report is one row.
        """
        ...

    async def sign_off(self, worker_id: str) -> None:
        """Forget this process: it has stopped in order. Its leases, if any, are left as they are.

        Its queues keep a record of it: see `last_consumers`.
        """
        ...

    async def workers(self) -> list[WorkerRecord]:
        """The processes that reported within the last day, by host, pid and id."""
        ...

    async def last_consumers(self) -> dict[str, LastConsumer]:
        """For each queue the process that was last seen to consume it, within 90 days: also one that is gone."""
        ...

    async def leases(self, *, limit: int = 1000) -> list[LeasedMessage]:
        """Running messages of all queues, the longest running first."""
        ...

    async def facts(self, id_: int) -> MessageFacts:
        """What is known about the message with this id. 0 is the id of none, and asks for the clock alone."""
        ...


@runtime_checkable
class FullStore(Store, Inspection, Control, Protocol):
    """All contracts: what `open_store` gives."""
