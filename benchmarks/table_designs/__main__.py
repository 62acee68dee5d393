"""Run the parts, on a private Postgres or on a given one."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import asyncpg

from benchmarks.table_designs import claiming, cost, packing, plans, snapshot, vacuum
from testkit.servers.postgres import Postgres

# Commits have their real cost. Timed background work is off: nothing removes or writes pages while we count.
_SETTINGS: dict[str, str | int] = {
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    messages: int
    future: int
    rounds: int
    repeat: int
    patience: int


_QUICK = Size(messages=5_000, future=2_000, rounds=1, repeat=50, patience=1)
_USUAL = Size(messages=100_000, future=100_000, rounds=2, repeat=500, patience=3)

_PARTS: dict[str, Callable[[str, Size], Awaitable[None]]] = {
    "claiming": lambda url, size: claiming.run(url, repeat=size.repeat),
    "packing": lambda url, size: packing.run(url, messages=min(size.messages, 10_000)),
    "plans": lambda url, size: plans.run(url, future=min(size.future, 100_000), patience=size.patience),
    "vacuum": lambda url, size: vacuum.run(
        url, future=size.future, dead=2 * size.messages, rounds=size.rounds
    ),
    "snapshot": lambda url, size: snapshot.run(url, messages=min(size.messages, 300_000), rounds=size.rounds),
    "cost": lambda url, size: cost.run(url, messages=size.messages, future=size.future, rounds=size.rounds),
}


def _parse() -> tuple[argparse.Namespace, Size]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table_designs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers, under a minute")
    parser.add_argument(
        "--url", help="a Postgres to use; its checkpoints and autovacuum are then its own affair"
    )
    parser.add_argument("--only", choices=_PARTS, help="one part")
    parser.add_argument("--messages", type=int, help="messages through each table")
    parser.add_argument("--future", type=int, help="messages beside them that are not due")
    parser.add_argument("--rounds", type=int, help="how often, all designs in turn")
    options = parser.parse_args()
    size = _QUICK if options.quick else _USUAL
    return options, Size(
        messages=options.messages or size.messages,
        future=options.future or size.future,
        rounds=options.rounds or size.rounds,
        repeat=size.repeat,
        patience=size.patience,
    )


async def _run(url: str, only: str | None, size: Size) -> None:
    connection = await asyncpg.connect(url)
    print(await connection.fetchval("select version()"))
    await connection.close()
    for name, part in _PARTS.items():
        if only in (None, name):
            began = time.monotonic()
            await part(url, size)
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)


def main() -> None:
    options, size = _parse()
    os.nice(5)
    # Given a URL, the server is only used, not started.
    with Postgres(options.url, durable=True, settings=_SETTINGS) as server:
        asyncio.run(_run(server.url, options.only, size))


if __name__ == "__main__":
    main()
