"""A process of the workload ends with the suite."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from faults.journal import Journal, read
from faults.workload import process


class Ended(Exception):
    """Where the process would have ended."""


def test_a_process_that_the_suite_started_by_itself_ends_when_it_has_another_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = iter([7, 7, 7, 1])
    looks: list[float] = []

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(time, "sleep", looks.append)

    with pytest.raises(Ended):
        process._watch("worker-1", Journal(tmp_path / "journal.jsonl", "worker-1"))

    assert len(looks) == 2
    assert read(tmp_path / "journal.jsonl") == []
