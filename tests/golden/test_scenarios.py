"""Nothing that the contract has is missing from the golden files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.scenarios import ONCE, SCENARIOS, verbs


def test_every_verb_of_the_contract_has_a_scenario() -> None:
    assert {each.verb for each in SCENARIOS} | ONCE == set(verbs())


def test_no_two_scenarios_have_the_same_name() -> None:
    names = [each.name for each in SCENARIOS]

    assert len(names) == len(set(names))


@pytest.mark.parametrize("store", ["sqlite", "postgres", "mysql", "redis"])
def test_every_verb_is_in_the_golden_file_of_every_store(store: str) -> None:
    lines = (Path(__file__).parent / f"{store}.txt").read_text("utf-8").splitlines()

    shown = {line.partition(":")[0] for line in lines if line and not line.startswith((" ", "#"))}

    assert shown == set(verbs())
