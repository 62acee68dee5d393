"""Errors that a driver raises by mistake: they tell nothing but that its connection is in doubt."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Broken(Exception):
    """The driver failed in a way of which the server told nothing: the connection is in doubt."""


async def driven(call: Awaitable[T], *known: type[Exception]) -> T:
    """What the driver answers. It raises these errors, and `Broken` from any other."""
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
