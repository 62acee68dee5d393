"""What the documentation shows runs as it stands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        (f"{page.relative_to(ROOT)}-{number}", code)
        for page in pages
        for number, code in enumerate(PYTHON.findall(page.read_text("utf-8")), start=1)
    ]


SNIPPETS = snippets()


def test_there_is_something_to_run() -> None:
    assert len(SNIPPETS) >= 3


@pytest.mark.parametrize(("name", "code"), SNIPPETS, ids=[name for name, _ in SNIPPETS])
def test_a_snippet_runs(name: str, code: str, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(code, "utf-8")

    ran = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr


def test_the_first_snippet_does_what_it_says(tmp_path: Path) -> None:
    script = tmp_path / "hello.py"
    script.write_text(SNIPPETS[0][1], "utf-8")

    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert "order 7 is still waiting for you" in ran.stdout
    assert (tmp_path / "nightmail.db").exists()


def test_the_demo_tells_its_whole_story() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.shop"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    story = ran.stdout
    told = [
        "were committed together",
        "was rolled back",
        "one of them is cancelled",
        "ms after its moment",
        "re-armed itself twice",
        "the third attempt went through",
        "was killed while it packed",
        "took it over",
        "nothing is left in the store",
    ]
    places = [story.find(line) for line in told]
    assert -1 not in places
    assert places == sorted(places)


def test_the_log_as_json_is_what_is_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "handlers.md").read_text("utf-8")
    (shown,) = [json.loads(each) for each in re.findall(r"^```json\n(.*?)\n```", page, re.MULTILINE)]
    (code,) = [code for _, code in SNIPPETS if "JSONFormatter" in code]
    script = tmp_path / "snippet.py"
    script.write_text(code, "utf-8")

    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    (failure,) = [line for line in lines if line.get("event") == "retried"]
    moments = {name: shown[name] for name in ("time", "next_at")}
    assert list(failure) == list(shown)
    assert failure | moments == shown
    assert (ran.stderr, "4000" in ran.stdout) == ("", False)
