"""What a run leaves behind: a result for what was killed, and none for what was not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest

from mutants import __main__ as command
from mutants import results
from mutants.gate import Alive, Killed
from mutants.mutant import Mutant
from mutants.results import Result, load, save
from mutants.tree import ROOT


def mutant(name: str) -> Mutant:
    return Mutant(name=name, why="", file="message.py", text="a", instead="b", killers=("tests",))


FIRST, SECOND = mutant("first"), mutant("second")
BOTH = (FIRST, SECOND)


def killed(each: Mutant) -> Result:
    return Result(digest=each.digest, by="tests/test_x.py::test_y", hung=False, seconds=1, commit="before")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page; both mutants were killed when they last ran."""
    monkeypatch.setattr(results, "FILE", tmp_path / "results.json")
    monkeypatch.setattr(results, "PAGE", tmp_path / "mutants.md")
    monkeypatch.setattr(command, "PAGE", ROOT / "mutants.md")
    save({each.name: killed(each) for each in BOTH}, BOTH)
    return tmp_path / "mutants.md"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, alive: str) -> int:
    """Run the command, where only the mutant of this name is alive."""

    @contextmanager
    def copied() -> Iterator[Path]:
        yield Path()

    def judge(_: Path, each: Mutant) -> Killed | Alive:
        return (
            Alive("all passed", 2.0) if each.name == alive else Killed("tests/test_x.py::test_y", False, 2.0)
        )

    monkeypatch.setattr(command, "MUTANTS", BOTH)
    monkeypatch.setattr(command, "copied", copied)
    monkeypatch.setattr(command, "unsound", lambda *_: {})
    monkeypatch.setattr(command, "complaints", lambda *_: [])
    monkeypatch.setattr(command, "judge", judge)
    monkeypatch.setattr("sys.argv", ["mutants", *arguments])
    return command.main()


@pytest.mark.parametrize(("alive", "other"), [("first", "second"), ("second", "first")])
def test_a_mutant_that_is_alive_now_has_no_result_though_it_was_killed_before(
    page: Path, monkeypatch: pytest.MonkeyPatch, alive: str, other: str
) -> None:
    assert run(monkeypatch, alive=alive) == 1

    assert load() == {other: ANY}
    assert load()[other].commit != "before"


def test_it_stays_without_one_when_another_is_killed_later(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(monkeypatch, "--name", "first", alive="first")
    before = page.read_text()

    assert run(monkeypatch, "--name", "second", alive="") == 0

    assert list(load()) == ["second"]
    assert page.read_text() == before, "a page with a mutant missing was written"


def test_the_page_is_written_once_all_are_killed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, alive="first")
    page.unlink()

    assert run(monkeypatch, "--name", "first", alive="") == 0

    assert list(load()) == ["first", "second"]
    assert "2 mutants, all killed" in page.read_text()
