"""A pipeline of a caller's client that watches keys until it is executed.

The driver's pipelines help themselves when a connection is lost: they connect anew and go on. But what was watched on
the old connection is not watched on the new one, and the commands would be carried out whatever became of the lease. So
nothing is sent unless the connection is the one that watches, and nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterPipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, RedisError, WatchError
from redis.exceptions import TimeoutError as RedisTimeoutError

from nightmail.errors import CannotJoin, NightmailError
from nightmail.stores.redis.scripts import Call
from nightmail.stores.redis.wire import Reply, Wire

LOST_CONNECTION: Final = (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError)
"""What is raised when nobody knows what became of a command."""


class Watched:
    """A pipeline, and the connection on which its keys are watched."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self._connection: Any = None
        self._stream: Any = None
        self._health_checks: Any = 0

    async def watch(self, keys: Sequence[str]) -> None:
        """Watch these. From here on nothing is repeated on another connection."""
        await self.pipeline
        await self.pipeline.watch(*keys)
        self._connection = self._current
        self._stream = getattr(self._connection, "_reader", None)
        # A check that fails connects anew, without a word to the pipeline.
        self._health_checks = self._connection.health_check_interval
        self._connection.health_check_interval = 0
        if isinstance(self.pipeline, ClusterPipeline):
            self.pipeline._execution_strategy._retry.update_retries(0)  # type: ignore[attr-defined]

    async def ask(self, call: Call) -> Reply:
        """Run a script at once, before MULTI."""
        return await self.pipeline.execute_command(*call.for_old_servers.in_full)

    def begin(self) -> None:
        """Collect commands from here on."""
        self.pipeline.multi()
        self.pipeline.execute = _refuse_to_execute

    @property
    def watching(self) -> bool:
        """Whether the keys are watched still: on the connection on which the commands will be sent."""
        connection = self._current
        return (
            connection is not None
            and connection is self._connection
            and getattr(connection, "_reader", None) is self._stream
            and Wire(connection).open
        )

    async def execute(self, call: Call) -> list[Reply]:
        """The commands, and this script behind them: all answers, refusals among them."""
        # Without flags: which version the caller's server is, is not known here.
        self.pipeline.execute_command(*call.for_old_servers.in_full)
        answers: list[Reply] = await type(self.pipeline).execute(self.pipeline, raise_on_error=False)
        return answers

    async def give_back(self) -> None:
        """Let go of what was watched and of the connection. What was not executed never is."""
        try:
            await self.pipeline.reset()
        except (RedisError, OSError, TimeoutError):
            # It was closed, and is watching nothing any more.
            pass
        finally:
            if self._connection is not None:
                self._connection.health_check_interval = self._health_checks

    @property
    def _current(self) -> Any:
        if isinstance(self.pipeline, ClusterPipeline):
            return self.pipeline._execution_strategy._transaction_connection  # type: ignore[attr-defined]
        return self.pipeline.connection


def watched(client: object, *, clustered: bool) -> Watched:
    """A new pipeline of this client."""
    if isinstance(client, Pipeline | ClusterPipeline):
        raise CannotJoin("pass the client, not a pipeline of it: the pipeline is what the block is given")
    if not isinstance(client, RedisCluster if clustered else Redis):
        wanted = "RedisCluster" if clustered else "Redis"
        raise CannotJoin(f"a transaction needs a redis.asyncio.{wanted}, not a {type(client).__name__}")
    given: Any = client
    try:
        pipeline = given.pipeline(transaction=True)
    except RedisClusterException:
        pipeline = None
    if clustered and not hasattr(pipeline, "_execution_strategy"):
        raise CannotJoin("this version of redis-py has no transactions in a cluster: a newer one has")
    return Watched(pipeline)


def lost_connection(error: WatchError) -> bool:
    """Whether this stands for a connection that was lost: then nobody knows what was carried out."""
    return not error.__suppress_context__ and isinstance(error.__context__, LOST_CONNECTION)


async def _refuse_to_execute(*_: object, **__: object) -> NoReturn:
    raise NightmailError(
        "leave the block instead of executing its pipeline: its end executes it, and the acknowledgement with it"
    )
