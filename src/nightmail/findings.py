"""What a doctor finds: values, made by the stores for their own servers and by `operations.doctor` for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, Protocol, runtime_checkable

RUNBOOKS: Final = "https://github.com/nightmail-py/nightmail/blob/main/docs/runbooks"


class Severity(IntEnum):
    """How bad it is."""

    NOTICE = 0
    """Worth knowing: nothing is wrong yet."""
    WARNING = 1
    """Something goes wrong, or will."""
    FATAL = 2
    """Messages are not delivered, or can be lost."""


class Code(StrEnum):
    """Everything that can be found. Each has a page in `docs/runbooks` of the same name."""

    NO_WORKER = "no-worker"
    WORKER_SILENT = "worker-silent"
    WORKERS_BUSY = "workers-busy"
    LEASES_LOST = "leases-lost"
    HANDLER_LONG = "handler-long"
    HANDLER_OUTLIVES_LEASE = "handler-outlives-lease"
    THREADS_SHORT = "threads-short"
    VERSIONS_MIXED = "versions-mixed"
    DEAD_LETTERS_GROWING = "dead-letters-growing"
    DEAD_LETTERS_WAITING = "dead-letters-waiting"
    RETRIES_FAIL = "retries-fail"
    KEY_BLOCKED = "key-blocked"
    PAUSE_FORGOTTEN = "pause-forgotten"
    BREAKER_OPEN = "breaker-open"
    CLOCK_SKEW = "clock-skew"
    SCHEMA_MISSING = "schema-missing"
    SCHEMA_OUTDATED = "schema-outdated"
    SCHEMA_NEWER = "schema-newer"
    SCHEMA_DRIFT = "schema-drift"
    UNSUITABLE_SERVER = "unsuitable-server"
    RIGHTS_MISSING = "rights-missing"
    CONNECTION_UNENCRYPTED = "connection-unencrypted"

    POSTGRES_DEAD_ROWS = "postgres-dead-rows"
    POSTGRES_OLD_SNAPSHOT = "postgres-old-snapshot"
    POSTGRES_REPLICATION_SLOT = "postgres-replication-slot"
    POSTGRES_NOTIFY_QUEUE = "postgres-notify-queue"
    POSTGRES_NO_WAKEUPS = "postgres-no-wakeups"
    POSTGRES_ISOLATION = "postgres-isolation"
    POSTGRES_DURABILITY = "postgres-durability"
    POSTGRES_STANDBYS = "postgres-standbys"
    POSTGRES_CONNECTIONS = "postgres-connections"

    MYSQL_DURABILITY = "mysql-durability"
    MYSQL_REPLICATION = "mysql-replication"
    MYSQL_ISOLATION = "mysql-isolation"
    MYSQL_CONNECTIONS = "mysql-connections"
    MYSQL_LONG_TRANSACTION = "mysql-long-transaction"

    REDIS_EVICTION = "redis-eviction"
    REDIS_PERSISTENCE = "redis-persistence"
    REDIS_REPLICAS = "redis-replicas"
    REDIS_MEMORY = "redis-memory"
    REDIS_CONNECTIONS = "redis-connections"

    SQLITE_VERSION = "sqlite-version"
    SQLITE_NETWORK_DISK = "sqlite-network-disk"
    SQLITE_LOG_LARGE = "sqlite-log-large"
    SQLITE_DISK_FULL = "sqlite-disk-full"


LASTING: Final = frozenset(
    {
        Code.SCHEMA_MISSING,
        Code.SCHEMA_OUTDATED,
        Code.SCHEMA_DRIFT,
        Code.UNSUITABLE_SERVER,
        Code.POSTGRES_DURABILITY,
        Code.MYSQL_DURABILITY,
        Code.REDIS_EVICTION,
        Code.REDIS_PERSISTENCE,
        Code.SQLITE_NETWORK_DISK,
    }
)
"""What stays until it is put right: a deployment may refuse to start for these, and for no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong, or will be."""

    code: Code
    severity: Severity
    what: str
    """In a few words, with the name of what it is about."""
    evidence: str
    """What was seen: numbers, names, times."""
    consequence: str
    """What happens if nothing is done."""
    remedy: str
    """What to do, with the command where there is one."""
    subject: tuple[str, ...] = ()
    """What it is about: a queue, a queue and a key, a worker, a node. Empty: the store. With `code` it is the same from
    one look to the next, whatever the numbers in the texts."""

    @property
    def runbook(self) -> str:
        """The address of the page about it."""
        return f"{RUNBOOKS}/{self.code}.md"

    @property
    def lasting(self) -> bool:
        """Whether it stays until it is put right, however long one waits."""
        return self.code in LASTING


@runtime_checkable
class Examined(Protocol):
    """A store that knows what can be wrong with its server."""

    async def examine(self, *, processes: int = 0) -> list[Finding]:
        """What is wrong with the server, or how it is set up. Only reads; what it may not read it leaves out.

        `processes`: how many are at work here. Each may need `Capabilities.connections` of the server's connections.
        """
        ...
