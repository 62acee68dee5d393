"""What goes through the store: a `Message` on its way in, a `Delivery` on its way out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import UUID

NAME_LIMIT: Final = 255
MAX_HEADERS_BYTES: Final = 64 * 1024
RESERVED_HEADERS: Final = "nightmail-"
"""The prefix of reserved headers: a store writes them, a publisher cannot."""
RELAYED_ID: Final = "nightmail-message-id"
"""The exception: a relay gives a message its id in the system it comes from, and no store reads it."""
FURTHEST_DUE: Final = timedelta(days=73_050)
"""How far ahead a message may be due: two hundred years. More is a mistake in the unit."""
PRIORITIES: Final = range(10)

# Made once: `json.dumps` makes an encoder for each call.
_encode: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_decode: Final = json.JSONDecoder().raw_decode

OnConflict: TypeAlias = Literal["skip", "replace", "earliest", "latest", "raise"]
"""What a publish does when its timer id is taken."""
_POLICIES: Final = get_args(OnConflict)

Due: TypeAlias = datetime | timedelta | None
"""When: at a moment, after a delay counted from the publish call, or (`None`) now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is published. Checks itself when built, so that nothing wrong is ever half written."""

    queue: str
    body: bytes = field(repr=False)
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    due: Due = None
    timer_id: str | None = field(default=None, repr=False)
    on_conflict: OnConflict = "skip"
    dedup_for: timedelta | None = None
    expires_in: timedelta | None = None
    ordering_key: str | None = field(default=None, repr=False)
    priority: int = 0
    encoded_headers: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # What is left at its default needs no check: this runs for every publish.
        check_name("queue", self.queue)
        if not isinstance(self.body, bytes):
            raise _not_bytes(self.body)
        if self.due is not None:
            check_due(self.due)
        if self.timer_id is not None or self.on_conflict != "skip" or self.dedup_for is not None:
            self._check_timer()
        if self.ordering_key is not None:
            check_name("ordering_key", self.ordering_key)
        if self.expires_in is not None:
            self._check_expiry(self.expires_in)
        if type(self.priority) is not int or self.priority not in PRIORITIES:
            _check_priority(self.priority)
        object.__setattr__(self, "encoded_headers", encode_headers(without_reserved(self.headers)))

    def with_body(self, body: bytes) -> Message:
        """The same message with another body. Everything else was checked and encoded when this one was built."""
        if not isinstance(body, bytes):
            raise _not_bytes(body)
        other = object.__new__(Message)
        for set_to, value in zip(_SETTERS, _values(self), strict=True):
            set_to(other, value)
        _set_body(other, body)
        return other

    def _check_timer(self) -> None:
        if self.timer_id is not None:
            check_name("timer_id", self.timer_id)
        if self.on_conflict not in _POLICIES:
            raise ValueError(f"on_conflict must be one of {', '.join(_POLICIES)}, not {self.on_conflict!r}")
        if self.on_conflict != "skip" and self.timer_id is None:
            raise ValueError(
                f"on_conflict={self.on_conflict!r} needs a timer_id: without one nothing can conflict"
            )
        if self.dedup_for is None:
            return
        if self.timer_id is None:
            raise ValueError("dedup_for needs a timer_id: it is the timer id that stays taken")
        if self.on_conflict not in ("skip", "raise"):
            raise ValueError(f"dedup_for goes with on_conflict 'skip' or 'raise', not {self.on_conflict!r}")
        if self.dedup_for <= timedelta(0):
            raise ValueError(f"dedup_for must be positive, not {self.dedup_for.total_seconds():g} s")

    def _check_expiry(self, expires_in: timedelta) -> None:
        if expires_in <= timedelta(0):
            raise ValueError(f"expires_in must be positive, not {expires_in.total_seconds():g} s")
        if isinstance(self.due, timedelta) and self.due >= expires_in:
            raise ValueError(f"the message would expire ({expires_in}) before it is due ({self.due})")


# A frozen value is set through its slots.
_REST: Final = tuple(each.name for each in fields(Message) if each.name != "body")
_values: Final = attrgetter(*_REST)
_SETTERS: Final = tuple(vars(Message)[name].__set__ for name in _REST)
_set_body: Final = vars(Message)["body"].__set__


def differ_in_bodies_only(messages: Sequence[Message]) -> bool:
    """Whether these are to be stored alike, each with its own body. For messages without timer ids."""
    first = messages[0]
    return all(
        each.encoded_headers == first.encoded_headers
        and each.queue == first.queue
        and each.due == first.due
        and each.priority == first.priority
        and each.ordering_key == first.ordering_key
        and each.expires_in == first.expires_in
        for each in messages
    )


@dataclass(slots=True, eq=False)
class Delivery:
    """A claimed message: the message, its lease and its counters.

    `id` and `token` together are the lease: every later write carries both. Times are the store's.

    Not frozen: one is made for every message, and a frozen one takes three times as long. Do not modify it.
    """

    id: int
    token: UUID = field(repr=False)
    queue: str
    body: bytes = field(repr=False)
    encoded_headers: str = field(repr=False)
    timer_id: str | None = field(repr=False)
    ordering_key: str | None = field(repr=False)
    priority: int
    due_at: datetime
    published_at: datetime
    claimed_at: datetime
    expires_at: datetime | None
    attempts: int
    """Failed handler runs since it was published or last postponed."""
    deliveries: int
    """Claims since it was last settled or handed back, this one included: more than 1 means a worker was lost."""
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    superseded: bool
    """A newer message took its timer id while it ran: it must not run again."""

    @property
    def attempt(self) -> int:
        """Which handler run this is, from 1."""
        return self.attempts + 1

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, decoded at each access. Raises `ValueError` when other software wrote them undecodable."""
        return decode_headers(self.encoded_headers)


@dataclass(slots=True, eq=False)
class DeadDelivery(Delivery):
    """A claimed dead letter.

    Its `id` is the dead letter's, `due_at` when it may be claimed; `attempts` and `deliveries` count its own handling.
    """

    message_id: int
    """The id that the message had."""
    reason: str
    error: str | None = field(repr=False)
    died_at: datetime


def check_queue(queue: str) -> None:
    """Refuse what cannot be the name of a queue."""
    check_name("queue", queue)


def check_name(what: str, name: str) -> None:
    """Refuse a name that not every store can keep: empty, over 255 characters, with NUL or a lone surrogate."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}")
    if not name:
        raise ValueError(f"{what} must not be empty")
    if len(name) > NAME_LIMIT:
        raise ValueError(f"{what} must be at most {NAME_LIMIT} characters, not {len(name)}")
    if "\x00" in name:
        raise ValueError(f"{what} must not contain NUL")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{what} must not contain lone surrogates") from None


def check_due(due: Due, what: str = "due") -> None:
    """Refuse a due time that is neither a delay nor an aware moment, or that lies centuries ahead."""
    if due is None:
        return
    if isinstance(due, timedelta):
        check_not_too_far(what, due)
        return
    if not isinstance(due, datetime):
        raise TypeError(f"{what} must be a datetime, a timedelta or None, not {type(due).__name__}")
    if due.tzinfo is None or due.utcoffset() is None:
        raise ValueError(
            f"{what} must be an aware datetime: a naive one means a different moment on every machine. "
            "Give it a time zone: datetime.now(UTC), or when.replace(tzinfo=...)"
        )
    # By our own clock: a day more or less does not matter here.
    check_not_too_far(what, due - datetime.now(UTC))


def check_not_too_far(what: str, delay: timedelta) -> None:
    """Refuse a delay so long that its unit must be wrong."""
    if delay > FURTHEST_DUE:
        raise ValueError(
            f"{what} lies more than 200 years ahead. Numbers are seconds: was it meant in milliseconds?"
        )


def _check_priority(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(f"priority must be a whole number, not {type(priority).__name__}")
    if priority not in PRIORITIES:
        raise ValueError(f"priority must be 0 to 9 (9 goes first), not {priority}")


def _not_bytes(body: object) -> TypeError:
    return TypeError(f"body must be bytes, not {type(body).__name__}")


def without_reserved(headers: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """These headers without the reserved ones."""
    reserved = [
        name
        for name in headers
        if isinstance(name, str) and name.lower().startswith(RESERVED_HEADERS) and name != RELAYED_ID
    ]
    if not reserved:
        return headers
    return {name: value for name, value in headers.items() if name not in reserved}


def encode_headers(headers: Mapping[str, Any], limit: int = MAX_HEADERS_BYTES) -> str:
    """Headers as JSON text, in ASCII so that every store keeps every character."""
    if not headers:
        return "{}"
    for name in headers:
        if not isinstance(name, str):
            raise TypeError(f"header names must be str, not {type(name).__name__}")
    try:
        encoded = _encode(headers if type(headers) is dict else dict(headers))
    except (TypeError, ValueError, RecursionError) as error:
        # The value itself stays out of the message: headers may carry secrets.
        raise ValueError(
            f"headers must be JSON: a {type(error).__name__} was raised while encoding them"
        ) from None
    if len(encoded) > limit:
        raise ValueError(
            f"headers must be at most {limit:,} bytes of JSON, not {len(encoded):,}: "
            "put large values into the body"
        )
    return encoded


def decode_headers(text: str) -> dict[str, Any]:
    """Headers as `encode_headers` wrote them."""
    if text == "{}":
        return {}
    try:
        # Half the time of `json.loads`, which first looks for white space that we never write.
        headers, end = _decode(text)
    except ValueError:
        end = -1
    if end != len(text):
        headers = json.loads(text)
    if not isinstance(headers, dict):
        raise ValueError("the stored headers are not a JSON object")  # noqa: TRY004 - bad data, not a bad argument
    return headers
