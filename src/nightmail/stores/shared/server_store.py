"""The life of a store that is a client of a server: what is open, and how often a worker must look."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from nightmail.stores.shared.meta import LOOK_INTERVAL, WITHOUT_WAKEUPS
from nightmail.stores.shared.opening import Opening


class Listener(Protocol):
    """What hears of wake-ups from other processes."""

    @property
    def deaf(self) -> bool:
        """Whether wake-ups are expected and do not arrive."""
        ...


class Runtime(Protocol):
    """What exists while a store is open."""

    @property
    def listener(self) -> Listener:
        """What hears of wake-ups."""
        ...

    async def close(self) -> None:
        """Close every connection and the thread: soon, even if the server does not answer."""
        ...

    def terminate(self) -> None:
        """Drop the connections that `close`, which was cancelled, had not closed yet."""
        ...


R = TypeVar("R", bound=Runtime)


class ServerStore(ABC, Generic[R]):
    """Opens nothing by itself: connections are made when they are needed."""

    def __init__(self) -> None:
        self._opening = Opening(self._make)

    @abstractmethod
    def _make(self) -> R:
        """What exists while the store is open."""

    @property
    def look_interval(self) -> timedelta:
        """See `Store.look_interval`."""
        deaf = self._opened is not None and self._opened.listener.deaf
        return WITHOUT_WAKEUPS if deaf else LOOK_INTERVAL

    async def open(self) -> None:
        """See `Store.open`. Connections are made when they are needed."""
        self._opening.open()

    async def close(self) -> None:
        """See `Store.close`. An engine or a client that was given stays open."""
        opened = self._opening.end()
        if opened is not None:
            try:
                await opened.close()
            finally:
                # A caller that gives up must not leave connections behind, which nothing would close any more.
                opened.terminate()

    @property
    def _opened(self) -> R | None:
        return self._opening.now

    @property
    def _runtime(self) -> R:
        return self._opening.here()
