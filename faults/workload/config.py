"""What a process of the workload is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "plain", "failing", "delayed", "timer", "ordered", "thread", "session", "undone", "joined"
]
KINDS: Final[tuple[Kind, ...]] = (
    "plain", "failing", "delayed", "timer", "ordered", "thread", "session", "undone", "joined",
)  # fmt: skip
"""`failing`: its first attempt fails. `timer`: with a timer id, published again until it is acknowledged. `thread`: a
`def` handler. `session`: its handler writes an effect in the transaction that ends the message. `joined`, `undone`:
published in a transaction that is committed, or rolled back."""

TRANSACTIONAL: Final = "session"
"""The queue whose handler writes effects."""
BULK_QUEUE: Final = "bulk"
"""The queue whose handler does next to nothing: most messages of a run go there, published many at a time."""
BATCH: Final = 50
"""How many."""
TOGETHER: Final = ("plain", "ordered", "timer")
"""The queues that one subscriber has; each other queue has one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """For one process."""

    name: str
    url: str
    directory: Path
    """Where the journal and its log are."""
    seed: int = 0
    breakage: str | None = None
    """Breaks the product on purpose, to see that it is found."""

    @property
    def journal(self) -> Path:
        return self.directory / "journal.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(Config):
    """For a worker."""

    lease: float = 3.0
    max_workers: int = 16
    max_deliveries: int = 10
    max_attempts: int = 10
    grace: float = 5.0
    handler_seconds: float = 0.2
    """How long a handler takes on average."""
    slow_seconds: float = 0.0
    """How long one handler in ten takes; 0: as long as the others."""
    timeout: float = 0.0
    """After how long a handler is cancelled; 0 is never."""
    block_seconds: float = 0.0
    """How long some handlers block."""
    blocks: Literal["loop", "process"] = "loop"
    """What they block: the event loop, or every thread of the process, by a call into C that keeps the GIL."""
    forks: float = 0.0
    """How many of the handlers fork a process."""
    bulk_workers: int = 16
    """How many handlers of `BULK_QUEUE` run at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherConfig(Config):
    """For a publisher."""

    count: int = 1_000_000
    """How many messages at most: it also ends when it is asked to."""
    pause: float = 0.05
    """Between two messages, on average."""
    kinds: tuple[Kind, ...] = KINDS
    cancels: float = 0.0
    """How many of the publishes are cancelled while they are under way."""
    at_once: int = 1
    """How many publishes are under way at a time."""
    bulk: float = 0.0
    """How many messages a second it publishes in batches; 0: it publishes messages of every kind, one by one."""
    poison: int = 0
    """How many of them kill the process that handles them."""
