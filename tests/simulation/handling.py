"""What handlers do, as the plan says: end in every way they can, or take their process along."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nightmail.controls import PauseRequested
from nightmail.engine.attempt import Answers
from nightmail.engine.current import acked_in_transaction
from nightmail.engine.slot import this_task
from nightmail.errors import LeaseLost
from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, Outcome, Postpone, Retry
from tests.simulation.events import Ended, Ending, Started
from tests.simulation.plan import Publish, Run
from tests.simulation.server import forever

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.process import Process

_WELL: Final = Run()
_POISON: Final = Run("kill", 0.05)


class Broken(Exception):
    """A handler failed."""


class CancelsItself(asyncio.CancelledError):
    """A handler ended as if it had been cancelled."""


class Script:
    """How each message's handler behaves, run by run, whichever process it runs in."""

    def __init__(self, publishes: Sequence[Publish]) -> None:
        self._runs: Mapping[str, tuple[Run, ...]] = {each.tag: each.runs for each in publishes}
        self._poison = {each.tag for each in publishes if each.poison}
        self._count: Counter[str] = Counter()
        self.is_calm = False
        """From now on every handler succeeds, but for those of poison."""

    def next(self, tag: str) -> Run:
        """How the next run of this message goes."""
        if tag in self._poison:
            return _POISON
        number = self._count[tag]
        self._count[tag] += 1
        runs = self._runs.get(tag, ())
        return _WELL if self.is_calm or number >= len(runs) else runs[number]


class Handling:
    """The handler of one worker."""

    def __init__(self, process: Process, client: Client, script: Script) -> None:
        self._process = process
        self._client = client
        self._script = script

    async def one(self, delivery: Delivery) -> Outcome | None:
        """Handle one delivery."""
        run = self._script.next(delivery.body.decode())
        self._note_start(delivery)
        try:
            outcome, how = await self._behave(run, delivery)
        except CancelsItself:
            self._note_end(delivery, "failed")
            raise
        except asyncio.CancelledError:
            self._note_end(delivery, "cancelled")
            raise
        except LeaseLost:
            self._note_end(delivery, "lost")
            raise
        except PauseRequested:
            self._note_end(delivery, "pauses")
            raise
        except Exception:
            self._note_end(delivery, "undone" if run.kind.startswith("session") else "failed")
            raise
        self._note_end(delivery, how)
        return outcome

    async def many(self, batch: Sequence[Delivery]) -> Answers:
        """Handle several: the longest behaviour decides how long, each has its own end."""
        runs = [self._script.next(delivery.body.decode()) for delivery in batch]
        for delivery in batch:
            self._note_start(delivery)
        try:
            for run, delivery in zip(runs, batch, strict=True):
                if run.kind == "kill":
                    await self._behave(run, delivery)
            await asyncio.sleep(max(run.seconds for run in runs))
        except asyncio.CancelledError:
            for delivery in batch:
                self._note_end(delivery, "cancelled")
            raise
        answers: list[Outcome | Exception | None] = []
        for run, delivery in zip(runs, batch, strict=True):
            answer, how = self._answer(run)
            self._note_end(delivery, how)
            answers.append(answer)
        return answers

    def _answer(self, run: Run) -> tuple[Outcome | Exception | None, Ending]:
        after = timedelta(seconds=run.after)
        match run.kind:
            case "fail" | "cancels_itself" | "rearm_fails" | "session_fails":
                return Broken("on purpose"), "failed"
            case "retry":
                return Retry(after), "retry"
            case "postpone":
                return Postpone(after), "postpone"
            case "pause":
                return PauseRequested(after, "too many requests"), "pauses"
            case "reject":
                return Dead("no such customer"), "reject"
            case _:
                return None, "ok"

    async def _behave(self, run: Run, delivery: Delivery) -> tuple[Outcome | None, Ending]:
        match run.kind:
            case "kill":
                await asyncio.sleep(run.seconds)
                self._process.kill(by=delivery.id)
                await forever()
            case "hang":
                await forever()
            case "stubborn":
                with suppress(asyncio.CancelledError):
                    await forever()
                # It was told to end, and takes its time.
                await asyncio.sleep(run.seconds / 4)
                raise Broken("cancelled, and not in the mood")
            case "cancels_itself":
                await asyncio.sleep(run.seconds)
                if run.after:
                    this_task().cancel()
                raise CancelsItself
            case "block":
                self._process.block(run.seconds)
                await asyncio.sleep(0)
            case "session" | "session_fails" | "session_left_open":
                return await self._in_session(run, delivery)
            case "rearm" | "rearm_fails":
                await self._rearm(run, delivery)
            case _:
                await asyncio.sleep(run.seconds)
        answer, how = self._answer(run)
        if isinstance(answer, Exception):
            raise answer
        return answer, how

    async def _in_session(self, run: Run, delivery: Delivery) -> tuple[Outcome | None, Ending]:
        client = self._client
        async with client.transaction() as session:
            await client.ack([delivery], transaction=session)
            # As `msg.ack(session=...)` does.
            acked_in_transaction([delivery])
            if run.kind == "session_fails":
                raise Broken("on purpose")
            if run.kind == "session_left_open":
                await asyncio.sleep(run.seconds)
        return None, "acked"

    async def _rearm(self, run: Run, delivery: Delivery) -> None:
        due = timedelta(seconds=run.after)
        tag = delivery.body.decode()
        again = Message(
            queue=delivery.queue,
            # Each time another tag, one that has no plan: it ends well.
            body=f"{tag.partition('+')[0]}+{delivery.id}".encode(),
            due=due,
            timer_id=delivery.timer_id,
            ordering_key=delivery.ordering_key,
        )
        await self._client.publish(again, own=delivery)
        await asyncio.sleep(run.seconds)

    def _note_start(self, delivery: Delivery) -> None:
        server = self._process.server
        token = server.token(delivery.token)
        server.note(Started, worker=self._client.worker, id=delivery.id, token=token)

    def _note_end(self, delivery: Delivery, how: Ending) -> None:
        if not self._process.is_dead:
            server = self._process.server
            token = server.token(delivery.token)
            server.note(Ended, worker=self._client.worker, id=delivery.id, token=token, how=how)
