"""Every scenario, by name."""

from __future__ import annotations

from typing import Final

from faults.scenarios import clusters, network, operators, processes, servers
from faults.scenarios.scenario import Scenario

SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        *processes.SCENARIOS,
        *network.SCENARIOS,
        *servers.SCENARIOS,
        *clusters.SCENARIOS,
        *operators.SCENARIOS,
    )
}

__all__ = ["SCENARIOS", "Scenario"]
