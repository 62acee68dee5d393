"""The mutation gate takes minutes. That it can still run, and what it last said, is checked here in a moment."""

from __future__ import annotations

from collections import Counter

import pytest

from mutants.catalogue import MUTANTS
from mutants.gate import of
from mutants.mutant import Mutant, Rotten
from mutants.results import PAGE, load, page
from mutants.tree import ROOT
from testkit.test_names import is_test

PARTS = {"engine", "broker", "cli", "memory", "sqlite", "postgres", "mysql", "redis"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_its_file_and_its_tests_exist(mutant: Mutant) -> None:
    source = (ROOT / mutant.path).read_text("utf-8")

    broken = mutant.applied(source)

    assert broken != source
    if mutant.path.suffix == ".py":
        compile(broken, mutant.name, "exec")
    assert mutant.killers
    assert [killer for killer in mutant.killers if not is_test(killer)] == []


def test_a_mutant_that_does_not_fit_its_file_is_told_with_both_names() -> None:
    mutant = Mutant(
        name="gone", why="", file="message.py", text="no such line", instead="", killers=("tests",)
    )

    with pytest.raises(Rotten, match=r"gone: its text is in src/nightmail/message\.py 0 times"):
        mutant.applied("something else")
    with pytest.raises(Rotten, match="2 times"):
        mutant.applied("no such line, no such line")


def test_every_part_of_the_product_has_mutants_and_no_two_have_one_name() -> None:
    assert {mutant.part for mutant in MUTANTS} >= PARTS
    assert [name for name, times in Counter(mutant.name for mutant in MUTANTS).items() if times > 1] == []
    assert len(MUTANTS) >= 40


def test_every_mutant_was_killed_as_it_is_now_by_one_of_its_tests() -> None:
    results = load()

    # After a change to a mutant: make mutants NAME="..."
    assert [each.name for each in MUTANTS if each.name not in results] == []
    assert [each.name for each in MUTANTS if results[each.name].digest != each.digest] == []
    for mutant in MUTANTS:
        assert any(of(results[mutant.name].by, killer) for killer in mutant.killers), mutant.name


def test_every_result_names_the_commit_that_it_is_about() -> None:
    # If this fails: make mutants ARGS=--old, in a clone.
    assert [name for name, result in load().items() if not result.commit] == []


def test_the_page_shows_these_results() -> None:
    assert PAGE.read_text() == page(MUTANTS, load())


def test_a_test_that_is_not_there_is_told_apart() -> None:
    here = "tests/mutants/test_catalogue.py"

    assert is_test(here)
    assert is_test(f"{here}::test_a_test_that_is_not_there_is_told_apart")
    assert is_test("tests/stores/memory/test_conformance.py::TestMemory::test_a_done_message_is_gone")
    assert not is_test(f"{here}::test_that_was_never_written")
    assert not is_test("tests/mutants/test_nothing.py")
