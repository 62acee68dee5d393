"""Waiting for a condition instead of sleeping for a guess."""

import time
from collections.abc import Callable

_LOOK_AGAIN_SECONDS = 0.01


def wait_until(condition: Callable[[], bool], *, within: float, what: str) -> None:
    """Return once `condition` holds; raise `TimeoutError` naming `what` after `within` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within:g} s for {what}")
        time.sleep(_LOOK_AGAIN_SECONDS)
