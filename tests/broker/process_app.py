"""Handlers that run in processes of their own: those must be able to import them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nightmail import Dead, OutboxBroker, Outcome, PauseQueue, PostponeMessage
from nightmail.annotations import OutboxMessage, OutboxSession, SyncOutboxSession

elsewhere = OutboxBroker("memory://", logger=None)
connection = "none"
"""What a parent has opened since it imported this: a forked child would have it, too."""


class Film(BaseModel):
    """What is encoded."""

    title: str


class OddError(Exception):
    """Cannot be made again from what is pickled of it."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def who(_n: int) -> int:
    return os.getpid()


def connection_here(_n: int) -> str:
    return connection


def title_of(film: Film) -> str:
    return film.title.upper()


def titles_of(films: list[Film]) -> int:
    return len(films)


def fails(n: int) -> None:
    raise LookupError("missing", n)


def fails_oddly(_n: int) -> None:
    raise OddError("very", "odd")


def returns_what_cannot_be_pickled(_n: int) -> Any:
    return lambda: None


def publishes_without_await(_n: int) -> None:
    _ = elsewhere.publish(1, "elsewhere")


def dies(_n: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_the_first_time(path: str) -> None:
    with Path(path).open("a") as runs:
        runs.write("ran\n")
    if len(Path(path).read_text().splitlines()) == 1:
        ctypes.string_at(0)  # A segmentation fault.


def never_ends_the_first_time(path: str) -> None:
    with Path(path).open("a") as runs:
        runs.write("ran\n")
    if len(Path(path).read_text().splitlines()) > 1:
        return
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


def ignores_signals(path: str) -> None:
    """What a supervisor sends to the whole group is for the parent to decide on."""
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    Path(path).write_text("survived")


def asks_for_its_message(_n: int, msg: OutboxMessage) -> None:
    """Refused."""


def asks_for_a_session(_n: int, session: OutboxSession) -> None:
    """Refused."""


def asks_for_a_synchronous_session(_n: int, session: SyncOutboxSession) -> None:
    """Refused."""


async def is_async(_n: int) -> None:
    """Refused."""


def postpones(_n: int) -> None:
    raise PostponeMessage(3600)


def rejects(_n: int) -> Outcome:
    return Dead("bad")


def pauses_its_queue(_n: int) -> None:
    raise PauseQueue(3600, "rate limit")


def sleeps(path: str) -> None:
    Path(path).write_text("begun")
    time.sleep(3600)
