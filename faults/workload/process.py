"""What workers and publishers have in common."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final

from faults.journal import Journal
from faults.workload.config import Config

LOOK_SECONDS: Final = 0.05
STALL: Final = "stall"
STALL_SECONDS: Final = 0.4
"""A process that did not get to run for so long was hit by a fault, even if only the machine was busy."""


def begin(config: Config, main: Coroutine[Any, Any, None], journal: Journal) -> None:
    """Run a process of the workload to its end."""
    # The process that forked this one may have been started with the terminal's signals ignored.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = (config.directory / f"{config.name}.log").open("a", buffering=1)
    faulthandler.enable(log)
    logging.basicConfig(
        stream=log, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", force=True
    )
    threading.Thread(target=_watch, args=(config.name, journal), daemon=True).start()
    try:
        asyncio.run(main)
    except BaseException:
        logging.getLogger(__name__).exception("ended by an error")
        raise


def _watch(name: str, journal: Journal) -> None:
    """Write down when this process stood still, and end it with the suite, which may have been killed."""
    suite, parent = multiprocessing.parent_process(), os.getppid()
    before = time.monotonic()
    # One with a clock of its own is started by the suite itself, and not by way of `multiprocessing`.
    while os.getppid() == parent if suite is None else suite.is_alive():
        time.sleep(LOOK_SECONDS)
        now = time.monotonic()
        if now - before > STALL_SECONDS:
            journal.write("fault", kind=STALL, target=name, sent=before, until=now)
        before = now
    os._exit(1)
