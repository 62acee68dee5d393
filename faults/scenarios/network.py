"""A network that fails: everything goes through the proxy."""

from __future__ import annotations

from functools import partial
from typing import Final

from faults.proxy import Rates
from faults.scenarios.processes import cast
from faults.scenarios.scenario import Scenario
from faults.stage import Stage

SERVERS: Final = ("postgres", "mariadb", "redis")
LOST_REPLIES: Final[Rates] = {"lost reply": 0.01}
EVERYTHING: Final[Rates] = {
    "cut": 0.001,
    "delay": 0.002,
    "black hole": 0.0005,
    "half a packet": 0.001,
    "lost reply": 0.002,
}


async def network(stage: Stage) -> None:
    """Cut, delay, swallow, halve."""
    await _upset(stage, EVERYTHING)


async def lost_replies(stage: Stage) -> None:
    """Requests are carried out and their replies lost, those of commits above all."""
    await _upset(stage, LOST_REPLIES)


async def _upset(stage: Stage, rates: Rates) -> None:
    proxy = stage.use_proxy()
    await cast(stage)
    proxy.rates = rates
    told = 0
    for target in range(1, stage.faults + 1):
        await stage.until(partial(_faults, stage, target), "a fault")
        if target * 10 // stage.faults > told:
            told = target * 10 // stage.faults
            stage.say(f"{target} of {stage.faults} faults")


def _faults(stage: Stage, count: int) -> bool:
    return stage.seen.count("fault", "nemesis") >= count


SCENARIOS: Final = (
    Scenario(
        name="lost-replies",
        about="requests are carried out, and their replies lost: commits above all",
        play=lost_replies,
        faults=60,
        stores=SERVERS,
    ),
    Scenario(
        name="network",
        about="connections are cut, delayed, black-holed, cut within a packet",
        play=network,
        faults=60,
        stores=SERVERS,
    ),
)
