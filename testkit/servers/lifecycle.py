"""Started when a block is entered and closed when it is left: one server, or a cluster of them."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

START_SECONDS: Final = 240.0
"""How long a start may take on a busy machine. A server that fails to start ends, and is not waited for."""


class StartsAndCloses(ABC):
    """To be used in a `with` statement."""

    @abstractmethod
    def start(self, *, within: float = START_SECONDS) -> Self:
        """Run it, if it does not run yet, and return once it answers."""

    @abstractmethod
    def close(self) -> None:
        """End it and remove every trace."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
