"""What is sent to a server: each request knows the key that decides where it goes, and how it is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

from nightmail.stores.redis.scripts import Script, script

if TYPE_CHECKING:
    from nightmail.stores.redis.link import Link

T_co = TypeVar("T_co", covariant=True)

Argument: TypeAlias = bytes | str | int
Command: TypeAlias = Sequence[Argument]
Reply: TypeAlias = Any


class Request(Protocol[T_co]):
    """Something to send."""

    @property
    def key(self) -> str:
        """In a cluster, the node that has this key is asked."""
        ...

    @property
    def more_seconds(self) -> float:
        """How much longer than usual it may take."""
        ...

    def __call__(self, link: Link) -> Awaitable[T_co]:
        """Send it, and return the answer."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A script with its keys, all in one slot, and its arguments. Answers a list: the script's answer comes first."""

    script: Script
    keys: tuple[str, ...]
    arguments: tuple[Argument, ...]
    then: tuple[Command, ...] = ()
    """Commands that follow on the same connection. Their errors are among the answers: the script ran all the same."""
    more_seconds: float = 0

    @property
    def key(self) -> str:
        """See `Request.key`."""
        return self.keys[0]

    def __call__(self, link: Link) -> Awaitable[list[Reply]]:
        """See `Request`. Raises if the script fails."""
        return link.call(self)

    @property
    def flagged(self) -> bool:
        """Whether an older server would not understand it."""
        return bool(self.script.flags)

    @property
    def for_old_servers(self) -> Call:
        """The same without flags."""
        return replace(self, script=script(self.script.name, flags=False)) if self.flagged else self

    @property
    def by_digest(self) -> Command:
        """As a command, for a server that knows the script."""
        return ("EVALSHA", self.script.digest, len(self.keys), *self.keys, *self.arguments)

    @property
    def in_full(self) -> Command:
        """As a command, for a server that may not know the script; it does from then on."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.arguments)


class Commands:
    """Commands about one key."""

    more_seconds: ClassVar[float] = 0

    def __init__(self, key: str, *commands: Command) -> None:
        self.key = key
        self._commands = commands

    def __call__(self, link: Link) -> Awaitable[list[Reply]]:
        """See `Request`. Raises the first error."""
        return link.ask_or_raise(*self._commands)


@dataclass(frozen=True, slots=True)
class Pipelined:
    """Calls of one script that may run twice, all to one server. Errors are among the answers."""

    calls: Sequence[Call]
    more_seconds: ClassVar[float] = 0

    @property
    def key(self) -> str:
        """See `Request.key`."""
        return self.calls[0].key

    def __call__(self, link: Link) -> Awaitable[list[Reply]]:
        """See `Request`."""
        return link.call_each(self.calls)
