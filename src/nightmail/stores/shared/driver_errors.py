"""Unexpected errors from a driver: all they say is that its connection is in doubt."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Broken(Exception):
    """The driver failed without an answer from the server: the connection is in doubt."""


async def driven(call: Awaitable[T], *known: type[Exception]) -> T:
    """Await a driver call. Known errors pass through; any other is raised as `Broken`."""
    try:
        return await call
    except known:
        raise
    except Exception as error:
        raise Broken from error


def below(error: Exception) -> Exception:
    """The driver's own error."""
    if isinstance(error, Broken) and isinstance(error.__cause__, Exception):
        return error.__cause__
    return error
