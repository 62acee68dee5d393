"""Takes the real clock, real entropy and real threads away from the engine while a history runs.

They are replaced where they come from, not where the engine uses them: code that moves to another module, and code
that is still to be written, is simulated too.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from asyncio import events
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import NoReturn
from unittest.mock import patch

from tests.simulation.loop import World


@contextmanager
def simulated(world: World, chance: Random) -> Iterator[None]:
    """Within the block time is the world's, as the running loop's clock shows it, and entropy comes from `chance`."""

    def monotonic() -> float:
        loop = events._get_running_loop()
        return world.now if loop is None else loop.time()

    def no_thread(_thread: threading.Thread) -> NoReturn:
        raise RuntimeError("a simulation has no threads")

    state = random.getstate()
    random.seed(chance.getrandbits(64))
    # The collector would run `__del__` methods at moments that depend on everything that ran before.
    collects = gc.isenabled()
    gc.disable()
    try:
        with (
            patch.object(time, "monotonic", monotonic),
            patch.object(os, "urandom", chance.randbytes),
            patch.object(threading.Thread, "start", no_thread),
        ):
            yield
    finally:
        random.setstate(state)
        if collects:
            gc.enable()
