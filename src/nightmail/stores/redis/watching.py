"""A pipeline of a caller's client that watches keys until it is executed.

When a connection is lost, the driver's pipelines reconnect and go on. But what was watched on the old connection is not
watched on the new one, and the commands would be executed whatever became of the lease. So nothing is sent unless the
connection is the one that watches, and nothing is sent twice.
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
from nightmail.stores.redis.link import Link
from nightmail.stores.redis.requests import Call, Reply

LOST_CONNECTION: Final = (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError)
"""Errors after which the fate of a command is unknown."""


class WatchingPipeline:
    """A pipeline, and the connection on which its keys are watched."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self._connection: Any = None
        self._stream: Any = None
        self._health_checks: Any = 0

    async def watch(self, keys: Sequence[str]) -> None:
        """Watch these. From here on nothing is retried on another connection."""
        await self.pipeline
        await self.pipeline.watch(*keys)
        self._connection = self._current
        self._stream = getattr(self._connection, "_reader", None)
        # A health check that fails reconnects without telling the pipeline.
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
        """Whether the keys are still watched on the connection that will send the commands."""
        connection = self._current
        return (
            connection is not None
            and connection is self._connection
            and getattr(connection, "_reader", None) is self._stream
            and Link(connection).usable
        )

    async def execute(self, call: Call) -> list[Reply]:
        """Execute the commands, then this script; returns all answers, errors among them."""
        # Without flags: the version of the caller's server is not known here.
        self.pipeline.execute_command(*call.for_old_servers.in_full)
        answers: list[Reply] = await type(self.pipeline).execute(self.pipeline, raise_on_error=False)
        return answers

    async def give_back(self) -> None:
        """Unwatch, and release the connection. What was not executed never is."""
        try:
            await self.pipeline.reset()
        except (RedisError, OSError, TimeoutError):
            # It was closed, and no longer watches anything.
            pass
        finally:
            if self._connection is not None:
                self._connection.health_check_interval = self._health_checks

    @property
    def _current(self) -> Any:
        if isinstance(self.pipeline, ClusterPipeline):
            return self.pipeline._execution_strategy._transaction_connection  # type: ignore[attr-defined]
        return self.pipeline.connection


def watching_pipeline(client: object, *, clustered: bool) -> WatchingPipeline:
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
    return WatchingPipeline(pipeline)


def lost_connection(error: WatchError) -> bool:
    """Whether this means a lost connection: then it is unknown what was executed."""
    return not error.__suppress_context__ and isinstance(error.__context__, LOST_CONNECTION)


async def _refuse_to_execute(*_: object, **__: object) -> NoReturn:
    raise NightmailError(
        "leave the block instead of executing its pipeline: its end executes it, and the acknowledgement with it"
    )
