"""Clocks for the event loop of a test, instead of the machine's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

SPEED: Final = 10.0
STEP: Final = 0.000_01


@contextmanager
def hurried() -> Iterator[None]:
    """Time passes ten times as fast on this event loop. Whatever it waits for besides may take its time."""
    selector = _selector()
    select, monotonic = selector.select, time.monotonic
    begun = monotonic()

    def fast_select(timeout: float | None = None) -> Any:
        return select(timeout if timeout is None else timeout / SPEED)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: begun + (monotonic() - begun) * SPEED)
        patch.setattr(selector, "select", fast_select)
        yield


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
