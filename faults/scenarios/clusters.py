"""Clusters that lose a server."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from faults.clusters import ClusterPlace, clustered
from faults.scenarios.processes import cast
from faults.scenarios.scenario import ASYNCHRONOUS, Scenario
from faults.stage import Stage

WITHOUT_COPY_SECONDS: Final = 1.0
"""How long a store that needs its copies is left without one after a failover."""


async def failover(stage: Stage) -> None:
    """kill -9 of a server that is written to: another takes over, and the lost one comes back later."""
    await _lose(stage, "failover", cut=False)


async def cut_off(stage: Stage) -> None:
    """The same, and the one that could take over had been cut off from the other before."""
    await _lose(stage, "failover to a copy that was cut off", cut=True)


async def all_lost(stage: Stage) -> None:
    """kill -9 of all servers at once, and a new start from the one whose files have the most."""
    place = stage.place
    assert isinstance(place, ClusterPlace)
    await cast(stage, workers=3, publishers=3)
    for number in range(stage.faults):
        await stage.until_any_busy(stage.random.randint(20, 60))
        begun = time.monotonic()
        await place.lose_all()
        stage.note("all servers killed", None, begun)
        stage.journal.write("returned")
        stage.say(
            f"{number + 1} of {stage.faults} times all killed; back within {time.monotonic() - begun:.1f} s"
        )
        await stage.until_any_busy(20)


async def _lose(stage: Stage, kind: str, *, cut: bool) -> None:
    place = stage.place
    assert isinstance(place, ClusterPlace)
    await cast(stage, workers=3, publishers=3)
    for number in range(stage.faults):
        await stage.until_any_busy(stage.random.randint(20, 60))
        begun = time.monotonic()
        inherited = await (place.cut_off_and_fail_over if cut else place.fail_over)(stage.random)
        hit = kind if inherited else "server killed"
        became = "another took over" if inherited else "none may take over, it was started again"
        stage.say(f"{number + 1} of {stage.faults} lost; {became} within {time.monotonic() - begun:.1f} s")
        if place.needs_copies:
            # Not until something runs: publishers may all stand before the server that acknowledges nothing.
            await asyncio.sleep(WITHOUT_COPY_SECONDS)
            await place.mend()
            stage.note(hit, None, begun)
        else:
            stage.note(hit, None, begun)
            await stage.until_any_busy(20)
            await place.mend()
        stage.journal.write("returned")
        await stage.until_any_busy(20)


SCENARIOS: Final = (
    Scenario(
        name="failover",
        about="kill -9 of a master, a primary or a node under load: another takes over",
        play=failover,
        faults=3,
        stores=("redis-cluster", "valkey-cluster", "galera", "patroni"),
        where=clustered,
        publisher={"pause": 0.05},
    ),
    Scenario(
        name="cut-off",
        about="kill -9 of a master or a primary whose copy was cut off for 0.3 s before",
        play=cut_off,
        faults=3,
        stores=(
            "redis-cluster",
            "redis-cluster-guarded",
            "redis-cluster-waiting",
            "patroni",
            "patroni-async",
        ),
        where=clustered,
        publisher={"pause": 0.02},
        # A synchronous standby has what was acknowledged.
        forgives=dict.fromkeys(
            ("redis-cluster", "redis-cluster-guarded", "redis-cluster-waiting", "patroni-async"), ASYNCHRONOUS
        ),
    ),
    Scenario(
        name="all-lost",
        about="kill -9 of all nodes of a cluster at once, and a new start on their files",
        play=all_lost,
        faults=3,
        stores=("galera", "galera-unsynced"),
        where=clustered,
        publisher={"pause": 0.02},
        forgives={"galera-unsynced": ASYNCHRONOUS},
    ),
)
