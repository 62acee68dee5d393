"""What is installed to measure a peer is pinned, and our own scripts find their systems."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from benchmarks.environments import REQUIREMENTS, python_for, version_of
from benchmarks.systems import BEST, DEFAULTS, OURS, OURS_QUIET, STORES, System, by_hand, on

SYSTEMS = [OURS, OURS_QUIET, *DEFAULTS, *BEST, *(by_hand(store) for store in STORES)]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: f"{system.label} on {system.stores[0]}")
def test_every_system_has_a_script_and_a_pinned_version(system: System) -> None:
    assert importlib.util.find_spec(f"benchmarks.adapters.{system.adapter}") is not None
    if system.environment is not None:
        assert version_of(system.environment)[0].isdigit()


def test_everything_that_a_peer_needs_is_pinned() -> None:
    lines = [
        line
        for file in REQUIREMENTS.glob("*.txt")
        for line in file.read_text().splitlines()
        if not line.startswith("#")
    ]

    assert lines
    assert [line for line in lines if "==" not in line] == []


def test_ours_runs_with_our_own_interpreter() -> None:
    assert python_for(None) == sys.executable


def test_a_system_is_measured_on_its_own_stores_only() -> None:
    assert on("redis", OURS, *DEFAULTS) == [OURS, DEFAULTS[1]]
