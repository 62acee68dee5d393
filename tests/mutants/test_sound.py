"""A mutant that cannot run proves nothing: every test fails with it, also one that checks nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.mutant import Mutant
from mutants.sound import unsound

SOURCE = """\
class Counter:
    count = 0

    def up(self, by: int) -> int:
        return self.count + by


def counted() -> int:
    return Counter().up(1)
"""


def mutant(name: str, text: str, instead: str) -> Mutant:
    return Mutant(name=name, why="", file="counting.py", text=text, instead=instead, killers=("tests",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    file = tmp_path / "src" / "nightmail" / "counting.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    return tmp_path


def test_a_mutant_that_names_what_is_not_there_is_broken(tree: Path) -> None:
    good = mutant("counts wrong", "self.count + by", "self.count - by")
    odd = mutant("has other types", "return self.count + by", 'return "1"')
    attribute = mutant("no such attribute", "self.count + by", "self._count + by")
    name = mutant("no such name", "self.count + by", "count + by")
    call = mutant("no such parameter", "up(1)", "up(1, 2)")

    found = unsound(tree, [good, odd, attribute, name, call], tree / "cache")

    assert found == {
        "no such attribute": '"Counter" has no attribute "_count"; maybe "count"?',
        "no such name": 'Name "count" is not defined',
        "no such parameter": 'Too many arguments for "up" of "Counter"',
    }
    assert [path.name for path in (tree / "src" / "nightmail").iterdir()] == ["counting.py"]


def test_a_mutant_that_cannot_be_parsed_is_broken(tree: Path) -> None:
    no_python = mutant("no Python", "return self", "return return self")

    assert list(unsound(tree, [no_python], tree / "cache")) == ["no Python"]


def test_only_python_is_looked_at(tree: Path) -> None:
    (tree / "src" / "nightmail" / "claim.sql").write_text("select 1;\n")
    other = Mutant(name="sql", why="", file="claim.sql", text="1", instead="2", killers=("tests",))

    assert unsound(tree, [other]) == {}
