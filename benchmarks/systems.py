"""What is measured: Nightmail, its peers, and a loop by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class System:
    """One system with one set of settings."""

    label: str
    """Its name in tables, plots and bounds."""
    adapter: str
    """The module of its script."""
    stores: tuple[str, ...]
    profile: str = "default"
    environment: str | None = None
    """Which requirements it needs; `None` for our own environment."""
    uvloop: bool = False


STORES: Final = ("postgres", "redis", "mariadb", "sqlite")
_POSTGRES: Final = ("postgres",)
_REDIS: Final = ("redis",)

# Ours is always at its defaults. `quiet` has its logger off, for comparisons with peers whose logger is off.
OURS: Final = System("nightmail", "nightmail", STORES)
OURS_QUIET: Final = System("nightmail, no log", "nightmail", STORES, "quiet")

OUTBOX: Final = System("faststream-outbox", "faststream_outbox", _POSTGRES, environment="faststream-outbox")
OUTBOX_BEST: Final = System(
    "faststream-outbox, best", "faststream_outbox", _POSTGRES, "best", "faststream-outbox"
)
TIMERS: Final = System(
    "faststream-redis-timers", "faststream_redis_timers", _REDIS, environment="faststream-redis-timers"
)
TIMERS_BEST: Final = System(
    "faststream-redis-timers, best", "faststream_redis_timers", _REDIS, "best", "faststream-redis-timers"
)
PGQUEUER: Final = System("pgqueuer", "pgqueuer", _POSTGRES, environment="pgqueuer")
PGQUEUER_BEST: Final = System("pgqueuer, best", "pgqueuer", _POSTGRES, "best", "pgqueuer", uvloop=True)
PROCRASTINATE: Final = System("procrastinate", "procrastinate", _POSTGRES, environment="procrastinate")
PROCRASTINATE_BEST: Final = System("procrastinate, best", "procrastinate", _POSTGRES, "best", "procrastinate")

DEFAULTS: Final = (OUTBOX, TIMERS, PGQUEUER, PROCRASTINATE)
BEST: Final = (OUTBOX_BEST, TIMERS_BEST, PGQUEUER_BEST, PROCRASTINATE_BEST)


def by_hand(store: str) -> System:
    """The loop by hand on this store."""
    return System("by hand", f"by_hand_{store}", (store,))


def on(store: str, *systems: System) -> list[System]:
    """Those of the systems that run on this store."""
    return [system for system in systems if store in system.stores]
