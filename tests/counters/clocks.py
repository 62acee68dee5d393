"""Clocks for the event loop of a test, instead of the machine's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

STEP: Final = 0.000_01


class Hurry:
    """How fast time passes: at first as on the machine's clock."""

    def __init__(self) -> None:
        self._clock = time.monotonic
        # One value: other threads read the time, too.
        self._since = (self._clock(), self._clock(), 1.0)

    @property
    def speed(self) -> float:
        """How many seconds pass in one of the machine's."""
        return self._since[2]

    @speed.setter
    def speed(self, speed: float) -> None:
        self._since = (self.monotonic(), self._clock(), speed)

    def monotonic(self) -> float:
        """The time."""
        then, began, speed = self._since
        return then + (self._clock() - began) * speed


@contextmanager
def hurried() -> Iterator[Hurry]:
    """Time passes as fast as it is told to on this event loop. Whatever it waits for besides may take its time."""
    selector, hurry = _selector(), Hurry()
    select = selector.select

    def fast_select(timeout: float | None = None) -> Any:
        return select(timeout if timeout is None else timeout / hurry.speed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", hurry.monotonic)
        patch.setattr(selector, "select", fast_select)
        yield hurry


@contextmanager
def same_on_every_machine() -> Iterator[None]:
    """Time passes by being asked for and by being waited for. Only where the event loop waits for nothing else."""
    selector = _selector()
    select = selector.select
    now = time.monotonic()

    def monotonic() -> float:
        nonlocal now
        now += STEP
        return now

    def instant_select(timeout: float | None = None) -> Any:
        nonlocal now
        now += timeout or 0.0
        return select(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", monotonic)
        patch.setattr(selector, "select", instant_select)
        yield


def _selector() -> Any:
    loop: Any = asyncio.get_running_loop()
    return loop._selector
