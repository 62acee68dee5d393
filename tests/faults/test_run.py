"""What a run says about itself repeats it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from faults.place import Place
from faults.run import again, run
from faults.scenarios import SCENARIOS

pytestmark = pytest.mark.sqlite


async def test_the_command_asks_for_as_many_faults_as_there_were_to_be(tmp_path: Path) -> None:
    place = Place("sqlite", f"sqlite:///{tmp_path / 'messages.db'}")
    found, _ = await run(SCENARIOS["kills"], place, tmp_path, seed=4, faults=2)

    assert found.asked == 2
    assert shlex.split(again(replace(found, asked=12))) == [
        "make", "faults", "SCENARIO=kills", "STORE=sqlite", "SEED=4", "ARGS=--faults 12",
    ]  # fmt: skip
