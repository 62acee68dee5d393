"""Of which code results are."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults import __main__, commits
from faults.commits import last_change, refusal
from faults.report.results import RESULTS, Uncommitted, keep_current

PATHS = ("src/nightmail",)


def git(*arguments: str, at: Path) -> str:
    user = ("-c", "user.name=n", "-c", "user.email=n@example.com")
    return subprocess.run(
        ["git", *user, *arguments], cwd=at, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of the product, in a repository of its own."""
    file = tmp_path / "src" / "nightmail" / "worker.py"
    file.parent.mkdir(parents=True)
    file.write_text("committed = True\n")
    git("init", "-q", at=tmp_path)
    git("add", ".", at=tmp_path)
    git("commit", "-q", "-m", "first", at=tmp_path)
    monkeypatch.setattr(commits, "ROOT", tmp_path)
    last_change.cache_clear()
    yield file
    last_change.cache_clear()


def test_results_are_of_the_commit_that_changed_the_product_last(product: Path) -> None:
    (product.parents[2] / "README.md").write_text("not the product\n")

    assert last_change(PATHS) == git("rev-parse", "--short", "HEAD", at=product.parent)
    assert refusal(last_change(PATHS)) == ""


@pytest.mark.parametrize("name", ["worker.py", "new.py"])
def test_what_is_not_committed_is_marked_and_refused(name: str, product: Path) -> None:
    product.with_name(name).write_text("committed = False\n")

    assert last_change(PATHS) == git("rev-parse", "--short", "HEAD", at=product.parent) + "+"
    assert "is not committed" in refusal(last_change(PATHS))


@pytest.mark.parametrize("what", [["--scenario", "kills"], ["--breakages", "all"]])
def test_no_results_are_written_of_what_is_not_committed(
    what: list[str], product: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    product.write_text("committed = False\n")
    results = product.with_name("runs.jsonl")
    monkeypatch.setattr("sys.argv", ["faults", *what, "--results", str(results)])

    with pytest.raises(SystemExit) as ended:
        __main__.main()

    assert ended.value.code == 2
    assert "is not committed" in capsys.readouterr().err
    assert not results.exists()


def test_what_is_not_committed_is_not_added_to_what_the_report_is_made_of(tmp_path: Path) -> None:
    elsewhere = tmp_path / "simulation.jsonl"
    elsewhere.write_text('{"commit": "0000000"}\n')
    keep_current(elsewhere, "abc+")

    assert elsewhere.read_text() == ""
    with pytest.raises(Uncommitted, match="changed since abc and is not committed"):
        keep_current(RESULTS / "simulation-of-a-test.jsonl", "abc+")
