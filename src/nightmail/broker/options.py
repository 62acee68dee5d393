"""Every option, declared once: its type, its default and what it does. Signatures take them with `Unpack`.

Not under `from __future__ import annotations`: `option_help` reads the declarations. Names that only type checkers
import are quoted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from logging import DEBUG
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypedDict

from faststream.middlewares import AckPolicy

from nightmail.breaker import Breaker
from nightmail.broker._upstream import EMPTY
from nightmail.broker.option_help import Option
from nightmail.durations import Duration, as_positive, as_timedelta
from nightmail.engine.settings import WorkerSettings
from nightmail.message import OnConflict
from nightmail.retry import RetryPolicy

if TYPE_CHECKING:
    from fast_depends import Provider
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
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

_WORKER: Final = WorkerSettings()


class MessageOptions(TypedDict, total=False):
    """What a message is like."""

    activate_in: Annotated[
        Duration | None, Option(None, "Deliver after this long, counted from this call. Zero or less is now.")
    ]
    activate_at: Annotated[datetime | None, Option(None, "Deliver at this (aware) moment. The past is now.")]
    expires_in: Annotated[
        Duration | None, Option(None, "Do not deliver later than this; it becomes a dead letter instead.")
    ]
    ordering_key: Annotated[
        str | None, Option(None, "Messages with the same key are delivered one at a time, in order.")
    ]
    priority: Annotated[int, Option(0, "0 to 9; higher goes first.")]
    headers: Annotated[dict[str, Any] | None, Option(None, "Headers for the handler.")]
    reply_to: Annotated[str, Option("", "A queue for the handler's return value.")]


class TimerIdOptions(TypedDict, total=False):
    """A message's timer id."""

    timer_id: Annotated[
        str | None, Option(None, "A business key that at most one message of the queue owns.")
    ]
    on_conflict: Annotated[
        OnConflict,
        Option(
            "skip",
            "When a waiting message owns that key: `skip` keeps the first, `replace` the last, `earliest` and "
            "`latest` whichever is due earlier or later, and `raise` raises `TimerExists`.",
        ),
    ]
    dedup_for: Annotated[
        Duration | None,
        Option(None, "Let the key count as taken for this long, even once the message was delivered."),
    ]


class PublishOptions(MessageOptions, total=False):
    """When and how messages are published."""

    session: Annotated[
        object | None,
        Option(
            None,
            "Your transaction: the message commits or rolls back with it. Without one it commits by itself.",
        ),
    ]
    correlation_id: Annotated[str | None, Option(None, "To trace the message by; generated when not given.")]


class TimerOptions(PublishOptions, TimerIdOptions, total=False):
    """The same for one message, which may have a timer id."""


class NoMoreOptions(TypedDict, total=False):
    """For a function that lists its options itself: what else it is given is misspelled, and answered with a hint."""


class DocumentOptions(TypedDict, total=False):
    """How an endpoint appears in the AsyncAPI document, and whether it outlives its last reference."""

    title: Annotated[str | None, Option(None, "Its title in the AsyncAPI document.")]
    description: Annotated[
        str | None, Option(None, "Its description there; a handler's docstring if not given.")
    ]
    include_in_schema: Annotated[bool, Option(True, "Whether it is in that document.")]
    persistent: Annotated[
        bool, Option(True, "Whether the broker keeps it; if not, it lives as long as you refer to it.")
    ]


class PublisherOptions(MessageOptions, TimerIdOptions, DocumentOptions, total=False):
    """Everything `publisher` takes besides its queue: the defaults for each message, and more."""

    schema: Annotated[Any | None, Option(None, "The type of its messages, for the AsyncAPI document.")]


class DeadOptions(TypedDict, total=False):
    """Selects the dead letters that match every given condition."""

    reason: Annotated[str | None, Option(None, "Those that died for this reason, see `Reason`.")]
    error: Annotated[str | None, Option(None, "Those whose error contains this text.")]
    older_than: Annotated[Duration | None, Option(None, "Those that died longer ago than this.")]
    ids: Annotated[tuple[int, ...] | None, Option(None, "Those with these ids.")]


Run: TypeAlias = Literal["thread", "process"]
"""Where a subscriber runs its `def` handlers."""


class WorkerOptions(TypedDict, total=False):
    """How deliveries are handled: for one subscriber or, given to the broker, as the default of all."""

    max_workers: Annotated[int, Option(_WORKER.max_workers, "How many handlers run at once.")]
    lease_ttl_seconds: Annotated[
        float,
        Option(_WORKER.lease.total_seconds(), "How long until a dead process's messages go to another."),
    ]
    retry: Annotated[RetryPolicy, Option(_WORKER.retry, "What follows a failure.")]
    breaker: Annotated[
        Breaker | None,
        Option(_WORKER.breaker, "When to pause a queue whose handlers keep failing; `None` is never."),
    ]
    max_deliveries: Annotated[
        int,
        Option(
            _WORKER.max_deliveries,
            "How often in a row a worker may be lost with a message before it becomes a dead letter.",
        ),
    ]
    handler_timeout: Annotated[
        Duration,
        Option(
            _WORKER.handler_timeout,
            "How long a handler may run before it is cancelled and the message retried.",
        ),
    ]
    give_up_after: Annotated[
        Duration | None,
        Option(
            _WORKER.give_up_after,
            "For how long after its publish a message may be retried or postponed; `None` is no limit.",
        ),
    ]
    describe_error: Annotated[
        Callable[[BaseException], str | None],
        Option(
            _WORKER.describe_error,
            "What a dead letter (up to 8 KiB), a message's last error and the log say about an error: the place to "
            "redact.",
        ),
    ]


class PipelineOptions(TypedDict, total=False):
    """What a message goes through: for one subscriber, those of a router, or all."""

    dependencies: Annotated[
        "Sequence[Dependant]", Option((), "Called for each message, whatever its handler asks for.")
    ]
    parser: Annotated["CustomCallable | None", Option(None, "Makes the message that handlers see.")]
    decoder: Annotated["CustomCallable | None", Option(None, "Makes the body that handlers get.")]
    codec: Annotated["CodecProto | None", Option(None, "Encodes and decodes bodies.")]
    ack_policy: Annotated[
        AckPolicy,
        Option(
            AckPolicy.NACK_ON_ERROR,
            "What happens to a message whose handler made no decision of its own.",
        ),
    ]


class GroupOptions(PipelineOptions, total=False):
    """What brokers and routers have in common."""

    middlewares: Annotated[
        "Sequence[BrokerMiddleware[Any]]", Option((), "Run around each publish and each delivery.")
    ]
    routers: Annotated["Iterable[Registrator[Any, Any]]", Option((), "Routers to include.")]
    underlying_driver_annotations: Annotated[
        "Mapping[Any, Any] | None",
        Option(
            None, "For your own classes that handlers must not use as annotations: what to import instead."
        ),
    ]


class RouterOptions(GroupOptions, total=False):
    """Everything `OutboxRouter` takes besides its prefix and handlers."""

    include_in_schema: Annotated[
        bool | None,
        Option(None, "Whether its endpoints are in the AsyncAPI document; `None` leaves it to each."),
    ]


class SubscriberOptions(WorkerOptions, PipelineOptions, DocumentOptions, total=False):
    """Everything `subscriber` takes besides its queues."""

    no_reply: Annotated[bool, Option(False, "Never publish the return value to the `reply_to` of a message.")]
    batch: Annotated[bool, Option(False, "Call the handler with a list of messages.")]
    max_batch: Annotated[int, Option(100, "How long that list may get.")]
    dead_letters: Annotated[
        bool,
        Option(
            False,
            "Deliver what died in these queues instead of what waits there. One that was handled is deleted.",
        ),
    ]
    run: Annotated[
        Run,
        Option(
            "thread", 'Where `def` handlers run: in threads of the subscriber, or in processes ("process").'
        ),
    ]
    propagate_headers: Annotated[
        bool, Option(False, "Copy the headers of a message to what its handler returns.")
    ]


class RelayOptions(WorkerOptions, DocumentOptions, total=False):
    """Everything `relay` takes besides its queues and its publisher."""

    id_prefix: Annotated[
        str,
        Option(
            "", "Goes before the id that each message is given for the other side, to tell two stores apart."
        ),
    ]
    dead_letters: Annotated[
        bool, Option(False, "Pass on what died in these queues instead of what waits there.")
    ]


class BrokerOptions(WorkerOptions, GroupOptions, total=False):
    """Everything `OutboxBroker` takes besides its store."""

    session_factory: Annotated[
        "SessionFactory | None", Option(None, "Makes the sessions of handlers that ask for `OutboxSession`.")
    ]
    sync_session_factory: Annotated[
        "SyncSessionFactory | None",
        Option(
            None, "Makes the sessions of `def` handlers that ask for `SyncOutboxSession`: a `sessionmaker`."
        ),
    ]
    graceful_timeout: Annotated[
        float | None, Option(15.0, "How many seconds `stop` waits for handlers that run.")
    ]
    observer: Annotated["Observer | None", Option(None, "Told of every event, in addition to the log.")]
    id_generator: Annotated["IdGenerator | None", Option(None, "Makes correlation ids; `None` is a UUID.")]
    logger: Annotated[
        "LoggerProto | None", Option(EMPTY, "Where to log: FastStream's own if not given, nowhere if `None`.")
    ]
    log_level: Annotated[
        int, Option(DEBUG, "The level of the lines about messages that are received and processed.")
    ]
    apply_types: Annotated[bool, Option(True, "Validate what handlers get, and inject what they ask for.")]
    serializer: Annotated["SerializerProto | None", Option(EMPTY, "Validates; pydantic if it is installed.")]
    provider: Annotated["Provider | None", Option(None, "Keeps the overrides of dependencies.")]
    context: Annotated["ContextRepo | None", Option(None, "What `Context()` looks into.")]
    specification_url: Annotated[
        str | None, Option(None, "The address in the AsyncAPI document; the store's if not given.")
    ]
    protocol: Annotated[str | None, Option(None, "The protocol in that document.")]
    protocol_version: Annotated[str | None, Option(None, "Its version there.")]
    description: Annotated[str | None, Option(None, "The description there.")]
    tags: Annotated["Iterable[Tag | TagDict]", Option((), "The tags there.")]


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
