"""Every option, declared once. Signatures take them with `Unpack`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

from nightmail.durations import Duration, as_positive, as_timedelta
from nightmail.engine.settings import WorkerSettings
from nightmail.message import OnConflict
from nightmail.retry import RetryPolicy

if TYPE_CHECKING:
    from fast_depends import Provider
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream.middlewares import AckPolicy
    from faststream.specification.schema.extra import Tag, TagDict

    from nightmail.broker._upstream import (
        BrokerMiddleware,
        CodecProto,
        ContextRepo,
        CustomCallable,
        IdGenerator,
        LoggerProto,
        Registrator,
    )
    from nightmail.broker.sessions import SessionFactory
    from nightmail.broker.sync_sessions import SyncSessionFactory
    from nightmail.observe import Observer


class MessageOptions(TypedDict, total=False):
    """What a message is like."""

    activate_in: Duration | None
    """Deliver after this long, counted from this call. Zero or less is now."""
    activate_at: datetime | None
    """Deliver at this (aware) moment. The past is now."""
    expires_in: Duration | None
    """Do not deliver later than this; it becomes a dead letter instead."""
    ordering_key: str | None
    """Messages with the same key are delivered one at a time, in order."""
    priority: int
    """0 to 9; higher goes first (0)."""
    headers: dict[str, Any] | None
    """Headers for the handler."""
    reply_to: str
    """A queue for the handler's return value."""


class NameOptions(TypedDict, total=False):
    """A message's timer id."""

    timer_id: str | None
    """A business key that at most one message of the queue owns."""
    on_conflict: OnConflict
    """When a waiting message owns that key: `skip` keeps the first, `replace` the last, `earliest` and `latest`
    whichever is due earlier or later, and `raise` raises `TimerExists` (`skip`)."""
    dedup_for: Duration | None
    """Let the key count as taken for this long, even once the message was delivered."""


class PublishOptions(MessageOptions, total=False):
    """When and how messages are published."""

    session: object | None
    """Your transaction: the message commits or rolls back with it. Without one it commits by itself."""
    correlation_id: str | None
    """To trace the message by; generated when not given."""


class TimerOptions(PublishOptions, NameOptions, total=False):
    """The same for one message, which may have a timer id."""


class DocumentOptions(TypedDict, total=False):
    """How an endpoint appears in the AsyncAPI document, and whether it outlives its last reference."""

    title: str | None
    description: str | None
    include_in_schema: bool
    persistent: bool


class PublisherOptions(MessageOptions, NameOptions, DocumentOptions, total=False):
    """Everything `publisher` takes besides its queue: the defaults for each message, and more."""

    schema: Any | None


class DeadOptions(TypedDict, total=False):
    """Selects the dead letters that match every given condition."""

    reason: str | None
    error: str | None
    """Text that the error contains."""
    older_than: Duration | None
    ids: tuple[int, ...] | None


Run: TypeAlias = Literal["thread", "process"]
"""Where a subscriber runs its `def` handlers."""


class WorkerOptions(TypedDict, total=False):
    """How deliveries are handled: for one subscriber or, given to the broker, as the default of all."""

    max_workers: int
    """How many handlers run at once (10)."""
    lease_ttl_seconds: float
    """How long until a dead process's messages go to another (60)."""
    retry: RetryPolicy
    """What follows a failure (`ExponentialRetry()`)."""
    max_deliveries: int
    """How often in a row a worker may be lost with a message before it becomes a dead letter (10)."""
    handler_timeout: Duration
    """How long a handler may run before it is cancelled and the message retried (1 h)."""
    give_up_after: Duration | None
    """For how long after its publish a message may be retried or postponed (no limit)."""
    describe_error: Callable[[BaseException], str | None]
    """What a dead letter says about an error, up to 8 KiB: the place to redact (`repr`)."""


class PipelineOptions(TypedDict, total=False):
    """What a message goes through: for one subscriber, those of a router, or all."""

    dependencies: Sequence[Dependant]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    ack_policy: AckPolicy
    """What happens to a message whose handler gave no verdict of its own (`NACK_ON_ERROR`)."""


class GroupOptions(PipelineOptions, total=False):
    """What brokers and routers have in common."""

    middlewares: Sequence[BrokerMiddleware[Any]]
    routers: Iterable[Registrator[Any, Any]]
    underlying_driver_annotations: Mapping[Any, Any]
    """For your own classes that handlers must not use as annotations: what to import instead."""


class RouterOptions(GroupOptions, total=False):
    """Everything `OutboxRouter` takes besides its prefix and handlers."""

    include_in_schema: bool | None


class SubscriberOptions(WorkerOptions, PipelineOptions, DocumentOptions, total=False):
    """Everything `subscriber` takes besides its queues."""

    no_reply: bool
    batch: bool
    """Call the handler with a list of messages (no)."""
    max_batch: int
    """How long that list may get (100)."""
    dead_letters: bool
    """Deliver what died in these queues instead of what waits there (no). One that was handled is deleted."""
    run: Run
    """Where `def` handlers run: in threads of the subscriber ("thread"), or in processes ("process")."""
    propagate_headers: bool
    """Copy the headers of a message to what its handler returns (no)."""


class BrokerOptions(WorkerOptions, GroupOptions, total=False):
    """Everything `OutboxBroker` takes besides its store."""

    session_factory: SessionFactory | None
    """Makes the sessions of handlers that ask for `OutboxSession`."""
    sync_session_factory: SyncSessionFactory | None
    """Makes the sessions of `def` handlers that ask for `SyncOutboxSession`: a `sessionmaker`."""

    graceful_timeout: float | None
    observer: Observer
    id_generator: IdGenerator
    logger: LoggerProto | None
    log_level: int
    apply_types: bool
    serializer: SerializerProto | None
    provider: Provider | None
    context: ContextRepo | None
    specification_url: str | None
    protocol: str | None
    protocol_version: str | None
    description: str | None
    tags: Iterable[Tag | TagDict]


_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(
        ("max_retries", "retries", "max_attempts", "max_tries", "attempts"),
        ("retry", "retry=ExponentialRetry(max_attempts=...)"),
    ),
    **dict.fromkeys(("retry_delay", "backoff", "retry_policy", "retry_strategy"), ("retry", "retry=")),
    **dict.fromkeys(("concurrency", "workers", "threads", "prefetch"), ("max_workers", "max_workers=")),
    **dict.fromkeys(
        ("lease", "lease_ttl", "visibility_timeout"), ("lease_ttl_seconds", "lease_ttl_seconds=")
    ),
    **dict.fromkeys(("timeout", "time_limit"), ("handler_timeout", "handler_timeout=")),
    **dict.fromkeys(("delay", "countdown", "delay_seconds"), ("activate_in", "activate_in=")),
    **dict.fromkeys(("eta", "run_at", "scheduled_at", "due_at"), ("activate_at", "activate_at=")),
    **dict.fromkeys(("ttl", "expires", "expiration"), ("expires_in", "expires_in=")),
    **dict.fromkeys(("unique_key", "dedup_id", "deduplication_id", "message_id"), ("timer_id", "timer_id=")),
    **dict.fromkeys(("key", "group_id", "partition_key"), ("ordering_key", "ordering_key=")),
    **dict.fromkeys(("transaction", "connection", "conn"), ("session", "session=")),
    **dict.fromkeys(("batch_size", "max_records"), ("max_batch", "batch=True, max_batch=")),
}
"""What other libraries call an option of ours: the option, and what to write."""
_CLOSE: Final = 0.75
"""How similar a name must be to be suggested: at 0.6 `max_retries` would suggest `max_workers`."""


def check_known(what: str, options: Mapping[str, Any], known: type[Any]) -> None:
    """Refuse a misspelled option: silently accepted, it would seem to work."""
    names = known.__annotations__.keys()
    for name in options:
        if name not in names:
            raise TypeError(f"{what} has no option {name!r}{_hint(name, names)}")


def _hint(name: str, names: Iterable[str]) -> str:
    if name in _ELSEWHERE and _ELSEWHERE[name][0] in names:
        return f": write {_ELSEWHERE[name][1]}"
    close = difflib.get_close_matches(name, names, n=1, cutoff=_CLOSE)
    close += [each for each in names if each.startswith(name)]
    return f": did you mean {close[0]!r}?" if close else ""


def publish_defaults(options: PublisherOptions) -> TimerOptions:
    """Only those that are about each message."""
    return {name: options[name] for name in TimerOptions.__annotations__ if name in options}  # type: ignore[return-value, literal-required]


def worker_options(options: Mapping[str, Any]) -> WorkerOptions:
    """Only those that are about handling deliveries."""
    return {name: options[name] for name in WorkerOptions.__annotations__ if name in options}  # type: ignore[return-value]


def worker_settings(options: WorkerOptions, graceful_timeout: float | None) -> WorkerSettings:
    """The settings that these options mean; what is not given keeps its default."""
    given: dict[str, Any] = dict(options)
    if "lease_ttl_seconds" in given:
        given["lease"] = as_positive("lease_ttl_seconds", given.pop("lease_ttl_seconds"))
    if "handler_timeout" in given:
        given["handler_timeout"] = as_positive("handler_timeout", given["handler_timeout"])
    if given.get("give_up_after") is not None:
        given["give_up_after"] = as_positive("give_up_after", given["give_up_after"])
    if graceful_timeout is not None:
        # None is FastStream's "do not wait", which would abandon what runs: a bounded wait is always better.
        given["graceful_timeout"] = max(as_timedelta("graceful_timeout", graceful_timeout), timedelta(0))
    return WorkerSettings(**given)
