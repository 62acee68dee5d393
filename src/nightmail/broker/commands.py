"""What travels from `publish`, or from a handler's return value, through the middlewares to the producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Unpack, cast

from faststream.response import BatchPublishCommand, PublishCommand, Response
from faststream.response.publish_type import PublishType

from nightmail.broker.joining import check_session
from nightmail.broker.option_checks import check_options
from nightmail.broker.option_help import lists_options
from nightmail.broker.options import PublishOptions, TimerOptions
from nightmail.durations import Duration, as_timedelta
from nightmail.message import Due, Message, OnConflict, check_due, check_name

_ANY_QUEUE: Final = "-"
"""A placeholder: only the publishers that get a return value know its queue."""


class OutboxPublishCommand(BatchPublishCommand):
    """One or several bodies for one queue, and when and how to store them.

    What is wrong with a message shows when the producer builds it, once, after the middlewares.
    """

    def __init__(
        self,
        bodies: tuple[Any, ...],
        queue: str,
        options: TimerOptions | None = None,
        *,
        publish_type: PublishType = PublishType.PUBLISH,
    ) -> None:
        given: TimerOptions = options or {}
        reply_to = given.get("reply_to", "")
        super().__init__(
            *(bodies or (None,)),
            _publish_type=publish_type,
            destination=queue,
            headers=dict(given.get("headers") or {}),
            correlation_id=given.get("correlation_id"),
            reply_to=reply_to,
        )
        if reply_to:
            check_name("reply_to", reply_to)
        self._given = given
        self._is_empty = not bodies
        self.session = given.get("session")
        if self.session is not None:
            check_session(self.session)
        self.may_leave_session = False
        """Whether the session is only the handler's: a store in another database publishes without it."""
        activate_in, activate_at = given.get("activate_in"), given.get("activate_at")
        self.due: Due = None
        if activate_in is not None or activate_at is not None:
            self.due = due_from(_read(float, activate_in), _read(datetime.fromisoformat, activate_at))
        self.timer_id = given.get("timer_id")
        self.on_conflict: OnConflict = given.get("on_conflict", "skip")
        self.dedup_for = _duration("dedup_for", given.get("dedup_for"))
        self.expires_in = _duration("expires_in", given.get("expires_in"))
        self.ordering_key = given.get("ordering_key")
        self.priority: int = _read(int, given.get("priority", 0))

    def check(self) -> OutboxPublishCommand:
        """The same, unless no message can be made of it: to refuse a bad argument where it is given."""
        Message(body=b"", **self.fields(None))
        return self

    def with_defaults(self, defaults: TimerOptions) -> OutboxPublishCommand:
        """The same, with these where nothing else was given."""
        if not defaults:
            return self
        given: TimerOptions = {**self._given, "headers": self.headers, "correlation_id": self.correlation_id}
        if self.reply_to:
            given["reply_to"] = self.reply_to
        return OutboxPublishCommand(self.batch_bodies, self.destination, merged(defaults, given))

    def join(self, handlers: object | None) -> None:
        """Go in the session of the handler that returned this, unless it named one itself."""
        if self.session is None and handlers is not None:
            self.session = handlers
            self.may_leave_session = True

    @property
    def batch_bodies(self) -> tuple[Any, ...]:
        """All bodies in order; `None` is a body too."""
        return () if self._is_empty else (self.body, *self.extra_bodies)

    @batch_bodies.setter
    def batch_bodies(self, bodies: Sequence[Any]) -> None:
        """Middlewares may replace them."""
        self._is_empty = not bodies
        self.body = bodies[0] if bodies else None
        self.extra_bodies = tuple(bodies[1:])

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> OutboxPublishCommand:
        """The same for us, from a command that another broker's response or a plain return value made.

        A list that was returned is one message, not several: `batch`, which FastStream knows, is never asked for.
        """
        if isinstance(cmd, cls):
            return cmd
        return cls(
            (cmd.body,),
            cmd.destination or _ANY_QUEUE,
            {"headers": cmd.headers, "correlation_id": cmd.correlation_id, "reply_to": cmd.reply_to},
            publish_type=cmd.publish_type,
        )

    def fields(self, content_type: str | None) -> dict[str, Any]:
        """The fields of the message to store, except its body, which has this type."""
        return {
            "queue": self.destination,
            "headers": self._envelope(content_type),
            "due": self.due,
            "timer_id": self.timer_id,
            "on_conflict": self.on_conflict,
            "dedup_for": self.dedup_for,
            "expires_in": self.expires_in,
            "ordering_key": self.ordering_key,
            "priority": self.priority,
        }

    def messages(self, encoded: Iterable[tuple[bytes, str | None]]) -> list[Message]:
        """The messages to store for these encoded bodies. Checked once: they differ in nothing else but their type."""
        made: list[Message] = []
        alike: dict[str | None, Message] = {}
        for body, content_type in encoded:
            like = alike.get(content_type)
            if like is None:
                like = alike[content_type] = Message(body=body, **self.fields(content_type))
                made.append(like)
            else:
                made.append(like.with_body(body))
        return made

    def _envelope(self, content_type: str | None) -> dict[str, Any]:
        """The caller's headers with ours; a header that contradicts the message is refused."""
        headers = dict(self.headers)
        ours = {
            "content-type": content_type,
            "correlation_id": self.correlation_id,
            "reply_to": self.reply_to or None,
        }
        for name, value in ours.items():
            if value is None:
                continue
            if headers.setdefault(name, value) != value:
                raise ValueError(f"the header {name!r} contradicts what is being published: leave it out")
        return headers


def merged(defaults: TimerOptions, given: TimerOptions) -> TimerOptions:
    """What was given, and the defaults for the rest; a due time that was given overrides either kind of default."""
    left = {name: value for name, value in defaults.items() if name not in given}
    if given.get("activate_in") is not None or given.get("activate_at") is not None:
        left.pop("activate_in", None)
        left.pop("activate_at", None)
    headers = {**(defaults.get("headers") or {}), **(given.get("headers") or {})}
    return cast("TimerOptions", {**left, **given, "headers": headers})


def _read(kind: Callable[[str], Any], value: Any) -> Any:
    """What an option says: `faststream publish` has nothing but text for numbers and moments.

    What cannot be read stays as it is, and is refused as the text that it is.
    """
    if not isinstance(value, str):
        return value
    try:
        return kind(value)
    except ValueError:
        return value


def _duration(name: str, value: Any) -> timedelta | None:
    return None if value is None else as_timedelta(name, _read(float, value))


def correlation_from(options: PublishOptions, make: Callable[[], str]) -> str:
    """The correlation id that was given, as such or among the headers, or a new one."""
    given = options.get("correlation_id") or (options.get("headers") or {}).get("correlation_id")
    return given if isinstance(given, str) and given else make()


def due_from(activate_in: Duration | None, activate_at: datetime | None) -> Due:
    """When: at most one of the two may be given."""
    if activate_in is not None and activate_at is not None:
        raise ValueError("give activate_in or activate_at, not both")
    if activate_in is not None:
        return as_timedelta("activate_in", activate_in)
    if activate_at is not None and not isinstance(activate_at, datetime):
        raise TypeError(f"activate_at must be a datetime, not {type(activate_at).__name__}")
    check_due(activate_at, "activate_at")
    return activate_at


class OutboxResponse(Response):
    """A handler's return value, with what `publish` takes: when it is due, its timer id, a session and so on.

    It goes to the queues of the publishers that decorate the handler, and to the one that the message asked for.
    """

    @lists_options(TimerOptions)
    def __init__(self, body: Any, **options: Unpack[TimerOptions]) -> None:
        """Publish this body.

        Args:
            body: What the handler gets: anything that can be encoded as JSON, or `str`, or `bytes`.
        """
        check_options("OutboxResponse", options, TimerOptions)
        super().__init__(
            body, headers=options.get("headers"), correlation_id=correlation_from(options, str) or None
        )
        self._options = options
        self.as_publish_command().check()

    def as_publish_command(self) -> OutboxPublishCommand:
        """See `Response`."""
        given: TimerOptions = {
            **self._options,
            "headers": self.headers,
            "correlation_id": self.correlation_id,
        }
        return OutboxPublishCommand((self.body,), _ANY_QUEUE, given)
