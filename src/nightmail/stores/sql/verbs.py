"""Verbs as generators: what a verb does is decided apart from how its statements are sent.

A verb yields one request after the other, is sent each reply, and returns its result. An error of a request is raised
at the `yield`, so a verb can catch it and go on. The same verb runs on a connection of ours, in a caller's transaction,
and in synchronous code: only the `send` below differs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from nightmail.stores.sql.statements import Statement

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Verb: TypeAlias = Generator[Any, Any, T]
"""Yields requests, is sent replies, returns a result. What requests and replies look like is up to each store."""
MakeVerb: TypeAlias = Callable[[], Verb[T]]
"""Starts a verb. A generator runs once, and a verb may have to be tried again."""


class Ask(NamedTuple):
    """A request: one statement with its values."""

    statement: Statement
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change(Generic[T_co]):
    """The result of a write, and the queues to ring once it is committed."""

    result: T_co
    rings: frozenset[str] = frozenset()


async def carry_out(verb: Verb[T], send: Callable[[Any], Awaitable[Any]]) -> T:
    """Run a verb to its end, awaiting each reply."""
    try:
        request = next(verb)
        while True:
            try:
                reply = await send(request)
            except Exception as error:  # noqa: BLE001 - the verb decides what it means
                request = verb.throw(error)
            else:
                request = verb.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        verb.close()


def carry_out_blocking(verb: Verb[T], send: Callable[[Any], Any]) -> T:
    """The same in synchronous code."""
    try:
        request = next(verb)
        while True:
            try:
                reply = send(request)
            except Exception as error:  # noqa: BLE001 - the verb decides what it means
                request = verb.throw(error)
            else:
                request = verb.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        verb.close()


def preceded(verb: Verb[T], before: Callable[[Any], Verb[None]]) -> Verb[T]:
    """The same verb, after another that depends on its first request."""
    try:
        request = next(verb)
        yield from before(request)
        while True:
            try:
                reply = yield request
            except Exception as error:  # noqa: BLE001 - the verb decides what it means
                request = verb.throw(error)
            else:
                request = verb.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result
