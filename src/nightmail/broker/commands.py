"""What travels from `publish` through the middlewares to the producer."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from faststream.response import PublishCommand
from faststream.response.publish_type import PublishType

from nightmail.durations import Duration, as_timedelta
from nightmail.message import Due, Message, OnConflict, check_due


class OutboxPublishCommand(PublishCommand):
    """One or several bodies for one queue, and when and how to store them."""

    def __init__(
        self,
        bodies: tuple[Any, ...],
        *,
        queue: str,
        session: object | None = None,
        due: Due = None,
        timer_id: str | None = None,
        on_conflict: OnConflict = "skip",
        dedup_for: timedelta | None = None,
        expires_in: timedelta | None = None,
        ordering_key: str | None = None,
        priority: int = 0,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        publish_type: PublishType = PublishType.PUBLISH,
    ) -> None:
        super().__init__(
            bodies[0] if bodies else None,
            _publish_type=publish_type,
            destination=queue,
            headers=dict(headers or {}),
            correlation_id=correlation_id,
            reply_to=reply_to,
        )
        self._more = bodies[1:]
        self._count = len(bodies)
        self.session = session
        self.due = due
        self.timer_id = timer_id
        self.on_conflict: OnConflict = on_conflict
        self.dedup_for = dedup_for
        self.expires_in = expires_in
        self.ordering_key = ordering_key
        self.priority = priority
        # Built once with an empty body, so that a bad argument is refused here and not after the middlewares ran.
        self.message(b"", None)

    @property
    def batch_bodies(self) -> tuple[Any, ...]:
        """All bodies in order; `None` is a body too."""
        return (self.body, *self._more) if self._count else ()

    @classmethod
    def from_cmd(cls, cmd: PublishCommand) -> OutboxPublishCommand:
        """The same for us, from a command that another broker's response or a plain return value made."""
        if isinstance(cmd, cls):
            return cmd
        return cls(
            (cmd.body,),
            queue=cmd.destination or "-",
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            publish_type=cmd.publish_type,
        )

    def message(self, body: bytes, content_type: str | None) -> Message:
        """The message to store for one encoded body."""
        return Message(
            queue=self.destination,
            body=body,
            headers=self._envelope(content_type),
            due=self.due,
            timer_id=self.timer_id,
            on_conflict=self.on_conflict,
            dedup_for=self.dedup_for,
            expires_in=self.expires_in,
            ordering_key=self.ordering_key,
            priority=self.priority,
        )

    def _envelope(self, content_type: str | None) -> dict[str, Any]:
        """The caller's headers with ours; a header that says something else than what is true is refused."""
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


def due_from(activate_in: Duration | None, activate_at: datetime | None) -> Due:
    """When: at most one of the two may be given."""
    if activate_in is not None and activate_at is not None:
        raise ValueError("give activate_in or activate_at, not both")
    if activate_in is not None:
        return as_timedelta("activate_in", activate_in)
    if activate_at is not None and not isinstance(activate_at, datetime):
        raise TypeError(f"activate_at must be a datetime, not {type(activate_at).__name__}")
    check_due(activate_at)
    return activate_at
