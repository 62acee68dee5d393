"""The suite can fail: a product that is broken on purpose is found, by the rule that should find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.checker import RULES
from faults.place import Place
from faults.run import run
from faults.scenarios import SCENARIOS
from faults.workload.breakages import BREAKAGES, WITHOUT

pytestmark = pytest.mark.sqlite


@pytest.mark.parametrize("name", ["acknowledged-before-commit", "a-stop-is-done", "a-raw-error"])
async def test_a_broken_product_is_found(name: str, tmp_path: Path) -> None:
    breakage = BREAKAGES[name]
    place = Place("sqlite", f"sqlite:///{tmp_path / 'messages.db'}")

    found, report = await run(
        SCENARIOS[breakage.scenario], place, tmp_path, seed=1, faults=2, breakage=breakage.name
    )

    assert any(said.startswith(breakage.rules) for said in found.violations), found
    assert f"SCENARIO={breakage.scenario} STORE=sqlite SEED=1" in report


def test_every_rule_has_a_broken_product_that_it_finds() -> None:
    # A breakage that one of several rules finds shows nothing of each.
    finds = {breakage.rules[0] for breakage in BREAKAGES.values() if len(breakage.rules) == 1}

    assert {rule.__name__ for rule in RULES} == finds | set(WITHOUT)
    assert finds.isdisjoint(WITHOUT)
