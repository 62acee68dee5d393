"""Child processes in which the `def` handlers of one worker run, where its settings ask for that.

Each has an interpreter of its own, so that CPU-bound handlers do not block one another, and can be killed, so that a
timeout really ends its handler. They are spawned, not forked: a fork would inherit the parent's connections and locks.

A child handles one call after the other, and ends with its parent, however that ends.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final
from weakref import WeakSet

from nightmail.errors import HandlerDied

_SPAWN: Final = multiprocessing.get_context("spawn")
_living: Final[WeakSet[Child]] = WeakSet()


class Children:
    """The idle children of one worker; each running handler has another. Belongs to one event loop."""

    def __init__(self) -> None:
        self._idle: list[Child] = []

    def take(self) -> Child:
        """One that is free, or a new one."""
        return self._idle.pop() if self._idle else Child()

    def give_back(self, child: Child) -> None:
        """Its call has ended."""
        if child.is_alive:
            self._idle.append(child)

    def close(self) -> None:
        """End those that are idle; nothing runs in them."""
        for child in self._idle:
            child.kill()
        self._idle.clear()


class Child:
    """A process that makes one call after the other. It starts with the first."""

    def __init__(self) -> None:
        self._process: Any = None
        self._connection: Connection | None = None
        self._killed = False
        self._lock = threading.Lock()

    @property
    def is_alive(self) -> bool:
        """Whether it can make another call."""
        return not self._killed and self._process is not None and self._process.is_alive()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the function returns or raises in the child; this thread waits. `HandlerDied` if the child dies."""
        task = pickled("it cannot be handed to the handler's process", (function, args, kwargs))
        try:
            connection = self._started()
            connection.send_bytes(task)
            answer = connection.recv_bytes()
        except (EOFError, OSError) as gone:
            raise self._died() from gone
        returned, error, where = pickle.loads(answer)  # noqa: S301 - from a child of ours
        if error is None:
            return returned
        error.__cause__ = _InChild(where)
        raise error

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def _started(self) -> Connection:
        with self._lock:
            if self._killed:
                raise EOFError
            if self._connection is None:
                ours, theirs = _SPAWN.Pipe()
                self._process = _SPAWN.Process(target=_serve, args=(theirs,), name="nightmail handler")
                self._process.start()
                theirs.close()
                self._connection = ours
                _living.add(self)
            return self._connection

    def _died(self) -> HandlerDied:
        self._killed = True
        code = None
        if self._process is not None:
            self._process.kill()
            self._process.join()
            code = self._process.exitcode
        if self._connection is not None:
            self._connection.close()
        return HandlerDied(
            f"the process that ran the handler died ({_named(code)}): the message comes again when its lease ends"
        )


class _InChild(Exception):
    """Where an error was raised in a child, as text: a traceback cannot be pickled."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def pickled(what: str, value: Any) -> bytes:
    """The value as bytes, or an error that says what is wrong with it."""
    try:
        return pickle.dumps(value)
    except Exception as error:
        # Only its type: the text may quote the message.
        raise TypeError(f"{what}, because it cannot be pickled ({type(error).__name__})") from error


@atexit.register
def _kill_all() -> None:
    # Before multiprocessing's own exit hook, which waits for them.
    for child in list(_living):
        child.kill()


def _named(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


# ── in the child ───────────────────────────────────────────────────────────────────────────────────────────


_is_child = False


def is_child() -> bool:
    """Whether this process is one of these."""
    return _is_child


def _serve(connection: Connection) -> None:
    global _is_child  # noqa: PLW0603 - true of the process, and for good
    _is_child = True
    # For the parent, which decides when its handlers end: a terminal or supervisor signals the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            task = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(_answered(task))


def _answered(task: bytes) -> bytes:
    try:
        function, args, kwargs = pickle.loads(task)  # noqa: S301 - from our parent
        returned = function(*args, **kwargs)
        return pickled("the handler returned what cannot be handed back", (returned, None, ""))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent raises it
        where = traceback.format_exc()
        try:
            return pickled("", (None, _surely_loads(error), where))
        except Exception:  # noqa: BLE001 - then its text must do
            told = RuntimeError(f"{type(error).__name__}: {error}")
            return pickle.dumps((None, told, where))


def _surely_loads(error: BaseException) -> BaseException:
    """The error, if it survives pickling: not every class does."""
    pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    return error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
