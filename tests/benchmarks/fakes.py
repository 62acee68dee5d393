"""Systems and servers that only pretend, for what a lab does when one of them fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from benchmarks.child import Child, ChildFailed
from benchmarks.lab import Bench
from benchmarks.servers import Server
from benchmarks.systems import System


class FakeServer(Server):
    """Has nothing behind it."""

    name = "sqlite"

    def start(self) -> None: ...

    def close(self) -> None: ...

    async def describe(self) -> dict[str, str]:
        return {"version": "0"}

    @contextmanager
    def database(self) -> Iterator[str]:
        yield "fake://"


class FakeChild:
    """Answers at once. What is in `fails` it cannot do."""

    def __init__(self, *fails: str) -> None:
        self.fails = fails
        self.asked: list[str] = []

    async def ask(self, do: str, **_: Any) -> dict[str, Any]:
        self.asked.append(do)
        if do in self.fails:
            raise ChildFailed(f"{do} went wrong")
        return {}

    async def wait(self, queue: str, count: int | None, *, patience: float) -> dict[str, Any]:
        await self.ask("wait")
        return {"count": count, "first": 1.0, "with_first": 1, "last": 2.0}

    def processor_seconds(self) -> float:
        return 0.0


def bench(label: str, child: FakeChild, *more: FakeChild) -> Bench:
    """A system in these processes, whose size is known."""
    children = [cast("Child", each) for each in (child, *more)]
    return Bench(
        System(label, "none", ("sqlite",)), FakeServer(), "fake://", children, {"typed": 10, "plain": 10}
    )
