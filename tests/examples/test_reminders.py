"""The reminder example runs as it stands, on Redis alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TOLD = [
    "invoices 7, 8, 9 and 10 will be reminded of in 30 days",
    "invoice 7 once more: None",
    "due within 31: invoice-7, invoice-8, invoice-9\n",
    "invoice 7 is replaced by one due in 0.5 s",
    "reminder 1 for invoice 7",
    "reminder 2 for invoice 7",
    "reminder 3 for invoice 7",
    "invoice 8 was paid: cancelled? True",
    "and cancelled again? False",
    "all others are cancelled: 2",
    "left in the queue: 0",
]


def run(url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-m", "examples.reminders", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def tells_its_story(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    places = [ran.stdout.find(line) for line in TOLD]
    assert -1 not in places, ran.stdout
    assert places == sorted(places)


@pytest.mark.redis
def test_the_reminders_tell_their_story_on_redis_alone(redis_url: str) -> None:
    tells_its_story(run(redis_url))
    tells_its_story(run(redis_url))  # nothing of the first is left to disturb the second


@pytest.mark.sqlite
def test_the_reminders_tell_the_same_story_on_another_store(tmp_path: Path) -> None:
    tells_its_story(run(f"sqlite:///{tmp_path}/reminders.db"))


@pytest.mark.redis
def test_without_a_redis_the_reminders_say_so_in_one_line() -> None:
    # Port 1 is reserved: nothing listens there.
    ran = run("redis://localhost:1")

    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "sqlite:///" in ran.stderr
