"""A pytest plugin that writes down how each test ended: `pytest -p mutants.recorder`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

import pytest

VARIABLE: Final = "NIGHTMAIL_MUTANTS_RECORD"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line for each phase of each test."""
    with Path(os.environ[VARIABLE]).open("a") as record:
        record.write(json.dumps([report.nodeid, report.when, report.outcome, report.duration]) + "\n")


class Phase(NamedTuple):
    """How one phase of a test ended."""

    test: str
    name: str
    """`setup`, `call` or `teardown`."""
    outcome: str
    seconds: float


def read(record: Path) -> list[Phase]:
    """What was written down."""
    return [Phase(*json.loads(line)) for line in record.read_text().splitlines()] if record.exists() else []
