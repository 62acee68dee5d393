"""A caller that is cancelled while its verb is under way: the verb ends, and the next has an answer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nightmail.errors import StoreUnavailable
from nightmail.stores.shared.lane import Lane


class Line:
    """A connection: questions go in, and each answer comes out when it is let."""

    usable = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.read: list[str] = []

    async def ask(self, question: str) -> str:
        self.asked.append(question)
        answer = await self.answers.get()
        self.read.append(answer)
        return answer

    def terminate(self) -> None:
        self.usable = False

    async def close(self) -> None:
        self.usable = False


class Lines(Lane[Line]):
    """Remembers each connection it made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Line] = []

    async def _connect(self) -> Line:
        self.made.append(Line())
        return self.made[-1]

    def _patience(self, work: Callable[[Line], Awaitable[Any]]) -> float:
        return 5.0

    def _translated(self, error: Exception, lost: type[StoreUnavailable]) -> Exception:
        return error

    def _shown(self, error: Exception) -> Exception | None:
        return error

    async def _clean_up(self, link: Line, error: BaseException) -> bool:
        return False


async def a_few_steps() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_answer_to_a_cancelled_verb_is_read_by_that_verb_and_by_no_other() -> None:
    lanes = Lines()
    first = asyncio.create_task(lanes.run(lambda line: line.ask("first")))
    await a_few_steps()
    first.cancel()
    second = asyncio.create_task(lanes.run(lambda line: line.ask("second")))
    await a_few_steps()
    # It has not begun: the other's answer is still to come.
    (line,) = lanes.made
    assert (first.cancelled(), line.asked) == (True, ["first"])

    line.answers.put_nowait("to the first")
    await a_few_steps()
    line.answers.put_nowait("to the second")

    assert await second == "to the second"
    assert line.read == ["to the first", "to the second"]
