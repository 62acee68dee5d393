"""One of our connections: several commands at once, and the answer to each.

The driver connects, authenticates and reads; it retries nothing. A command sent twice because the first reply was late
would claim twice, or publish twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError, ResponseError

from nightmail.stores.redis.errors import OF_THE_DRIVER, is_unknown_script, is_unknown_syntax
from nightmail.stores.redis.requests import Call, Command, Reply
from nightmail.stores.shared.driver_errors import Broken, driven

try:
    import hiredis
except ImportError:  # The driver does without it too, in Python.
    _pack: Any = None
else:
    _pack = getattr(hiredis, "pack_command", None)


class Link:
    """A driver connection that is ours alone."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.old = False
        """Whether the server is older than 7.0, and does not support script flags."""

    @property
    def usable(self) -> bool:
        """Whether it is still open, as far as can be seen without a call."""
        # The driver would notice only after sending, too late to know whether that arrived.
        reader = getattr(self.connection, "_reader", None)
        return bool(self.connection.is_connected) and not (reader is not None and reader.at_eof())

    async def connect(self) -> None:
        """Connect and authenticate."""
        await self.connection.connect()

    async def send(self, *commands: Command) -> None:
        """Send these without waiting for answers."""
        packed = self._packed(commands)
        await driven(self.connection.send_packed_command(packed, check_health=False), *OF_THE_DRIVER)

    async def read(self) -> Reply:
        """The next answer; raises if it is an error."""
        return await driven(self.connection.read_response(), *OF_THE_DRIVER)

    async def ask(self, *commands: Command) -> list[Reply]:
        """Send these at once; returns the answers in order, errors among them, not raised."""
        answers: list[Reply] = []
        connection = self.connection
        # As `send` and `read` do, but every verb comes through here: without two more coroutines for each command.
        try:
            await connection.send_packed_command(self._packed(commands), check_health=False)
            for _ in commands:
                try:
                    answers.append(await connection.read_response())
                except ResponseError as error:
                    answers.append(error)
        except OF_THE_DRIVER:
            raise
        except Exception as error:
            raise Broken from error
        return answers

    def _packed(self, commands: Sequence[Command]) -> Any:
        """These commands as bytes. The asynchronous side of the driver would make a call for each argument."""
        if _pack is None:
            return self.connection.pack_commands(commands)
        return [_pack(tuple(command)) for command in commands]

    async def ask_or_raise(self, *commands: Command) -> list[Reply]:
        """The same; raises the first error among the answers."""
        answers = await self.ask(*commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    async def call(self, call: Call) -> list[Reply]:
        """Run a script, then the commands that follow it; raises if the script fails.

        A server that does not know the script is sent it in full.
        """
        if self.old:
            call = call.for_old_servers
        answers = await self.ask(call.by_digest, *call.then)
        if not isinstance(answers[0], Exception):
            return answers
        if is_unknown_script(answers[0]):
            answers = await self.ask(call.in_full, *call.then)
        if not self.old and call.flagged and is_unknown_syntax(answers[0]):
            self.old = True
            return await self.call(call)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers

    async def call_each(self, calls: Sequence[Call]) -> list[Reply]:
        """Run one script many times, pipelined; the answers, errors among them, not raised. Each may run twice."""
        # The first answer shows whether the server knows the script, which is the same for all.
        try:
            (first,) = await self.call(calls[0])
        except ResponseError as error:
            first = error
        rest = [call.for_old_servers if self.old else call for call in calls[1:]]
        return [first, *(await self.ask(*(call.by_digest for call in rest)) if rest else ())]

    def terminate(self) -> None:
        """Close without waiting."""
        connection = self.connection
        writer = getattr(connection, "_writer", None)
        if writer is not None:
            # The driver's own close is a coroutine, and there may be nothing to await it.
            with suppress(Exception):
                writer.transport.abort()
            connection._reader = connection._writer = None

    async def close(self) -> None:
        """Close."""
        with suppress(RedisError, OSError, TimeoutError):
            await self.connection.disconnect()
