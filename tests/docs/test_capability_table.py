"""The tables in docs/capabilities.md are what the stores declare and what the suite proves."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightmail.store import Capabilities
from testkit.capability_table.endings import (
    Ending,
    Lacking,
    Missed,
    Passed,
    complaints,
    declared,
    ending,
    expected,
    suite,
    together,
)
from testkit.capability_table.page import committed, tables

ROOT = Path(__file__).parents[2]
STORES = ROOT / "src" / "nightmail" / "stores"

ALL_OF_IT = Capabilities(
    name="ideal",
    transactions=True,
    concurrent_writers=True,
    locks_rows=True,
    repeatable_read=True,
    blocking=True,
    pushes_wakeups=True,
    embedded=False,
    connections=2,
)
ALONE = replace(ALL_OF_IT, name="alone", transactions=False)


def test_the_page_shows_what_the_stores_declare() -> None:
    now = tables([(store, expected(store)) for store in declared()])

    assert committed() == now, "docs/capabilities.md is out of date: run `python -m testkit.capability_table`"


def test_every_store_in_the_tree_has_a_column() -> None:
    in_the_tree = {path.parent.name for path in STORES.glob("*/store.py")} - {"sql"}

    assert {store.name for store in declared()} == in_the_tree


def test_every_field_and_every_part_is_explained() -> None:
    text = tables([(ALL_OF_IT, expected(ALL_OF_IT))])

    assert "| `transactions` | Whether a caller's own transaction can be joined. | yes |" in text
    assert "| `connections` | How many connections one process needs at most" in text
    assert "| `schema` | The life of a store: migrate, check, open, close. |" in text
    assert "|  |" not in text.replace("| all |  |", "")


class TestExpecting:
    def test_a_store_that_can_do_everything_passes_everything(self) -> None:
        assert set(expected(ALL_OF_IT).values()) == {Passed()}

    def test_what_a_store_lacks_is_skipped_by_its_name(self) -> None:
        assert set(expected(ALONE).values()) == {Passed(), Lacking("transactions")}

    def test_skipped_tests_are_counted_by_what_they_need(self) -> None:
        (part,) = (part for part in suite() if part.name == "delay")
        endings: dict[str, Ending] = dict.fromkeys(part.tests, Passed())
        first, second, third, *_ = endings
        endings |= {
            first: Lacking("transactions"),
            second: Lacking("repeatable_read"),
            third: Lacking("transactions"),
        }

        row = next(line for line in tables([(ALONE, endings)]).splitlines() if line.startswith("| `delay` |"))

        whole = len(part.tests)
        assert row.endswith(f"| {whole - 3} of {whole} (1 needs `repeatable_read`, 2 need `transactions`) |")


class TestJudging:
    def test_a_run_that_went_as_declared_gives_no_complaint(self) -> None:
        assert complaints(ALONE, ALONE, expected(ALONE)) == []

    def test_a_store_that_did_not_run_is_named(self) -> None:
        assert complaints(ALONE, None, {}) == ["alone: no class under tests/stores ran the suite on it"]

    def test_a_store_that_says_something_else_once_it_is_open_is_named(self) -> None:
        (why,) = complaints(ALONE, replace(ALONE, connections=9), expected(ALONE))

        assert "alone" in why
        assert "connections=9" in why

    @pytest.mark.parametrize(
        ("ended", "said"),
        [
            (Missed("failed (call)"), "failed (call)"),
            (Missed("the server could not be had"), "the server could not be had"),
            (Lacking("transactions"), "Lacking(capability='transactions') instead of Passed()"),
        ],
    )
    def test_a_test_that_ended_otherwise_is_named(self, ended: Ending, said: str) -> None:
        endings = expected(ALL_OF_IT)
        test = next(iter(endings))

        assert complaints(ALL_OF_IT, ALL_OF_IT, {**endings, test: ended}) == [f"ideal: {test}: {said}"]

    def test_a_test_that_was_not_run_is_named(self) -> None:
        endings = expected(ALL_OF_IT)
        test = next(iter(endings))
        del endings[test]

        assert complaints(ALL_OF_IT, ALL_OF_IT, endings) == [f"ideal: {test} was not run"]


def report(when: Any, outcome: Any, longrepr: Any = None) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid="a test", location=("", 0, ""), keywords={}, outcome=outcome, longrepr=longrepr, when=when
    )


class TestEndings:
    @pytest.mark.parametrize(
        ("one", "ended"),
        [
            (report("setup", "passed"), None),
            (report("call", "passed"), Passed()),
            (report("teardown", "passed"), None),
            (report("setup", "failed"), Missed("failed (setup)")),
            (report("call", "failed"), Missed("failed (call)")),
            (
                report("setup", "skipped", ("", 1, "Skipped: no wake-ups arrive on this way to the store")),
                None,
            ),
            (report("teardown", "failed"), Missed("failed (teardown)")),
            (
                report("setup", "skipped", ("a.py", 1, "Skipped: redis: no transactions")),
                Lacking("transactions"),
            ),
            (
                report("setup", "skipped", ("a.py", 1, "Skipped: no server here")),
                Missed("Skipped: no server here"),
            ),
        ],
    )
    def test_a_report_tells_how_a_test_ended(self, one: pytest.TestReport, ended: Ending | None) -> None:
        assert ending(one) == ended

    @pytest.mark.parametrize("first", [Passed(), Lacking("transactions"), Missed("failed (call)")])
    def test_one_that_missed_is_not_made_good_by_another(self, first: Ending) -> None:
        assert isinstance(together(first, Missed("failed (setup)")), Missed)
        assert isinstance(together(Missed("failed (setup)"), first), Missed)

    def test_what_was_lacking_once_is_not_passed(self) -> None:
        assert together(None, Passed()) == Passed()
        assert together(Passed(), Lacking("transactions")) == Lacking("transactions")
        assert together(Lacking("transactions"), Passed()) == Lacking("transactions")


@pytest.mark.slow
@pytest.mark.memory
def test_one_store_is_run_and_its_column_printed() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "testkit.capability_table", "memory"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    (memory,) = (store for store in declared() if store.name == "memory")
    assert ran.stdout.endswith(tables([(memory, expected(memory))]) + "\n")


def test_a_store_that_does_not_exist_is_refused_before_anything_runs() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "testkit.capability_table", "oracle"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", "there is no store oracle\n")
