"""The page of versions says what runs have shown, and of which of them the suite has changed since."""

from __future__ import annotations

from typing import Any

from compat.__main__ import PAGE, load
from compat.collected import collected
from compat.table import page, total
from compat.targets import TARGETS
from testkit.test_names import is_test


def test_the_page_shows_the_results_and_marks_those_of_an_older_suite() -> None:
    # If this fails: `make compat ARGS=--page`.
    assert PAGE.read_text("utf-8") == page(load(), collected(TARGETS))


def test_a_row_is_old_when_the_suite_has_other_tests_by_now() -> None:
    results: dict[str, dict[str, Any]] = {
        "Postgres 18": {"version": "18.4", "passed": 9, "skipped": 1, "failed": 0, "commit": "abc1234"},
        "Redis": {"version": "8.0", "passed": 9, "failed": 1},
        "Valkey": {"cannot": "there is none"},
    }

    text = page(results, {"Postgres 18": 10, "Redis": 11, "Valkey": 11, "Python 3.14": 5})

    assert total(results["Postgres 18"]) == 10
    assert "| Postgres 18 | 18.4 | 9 | 1 | 0 | abc1234 |  |\n" in text
    assert "| Redis | 8.0 | 9 | 0 | 1 | not noted | old |\n" in text
    assert text.endswith("written:\n\n- Valkey: there is none\n\nNot tried:\n\n- Python 3.14\n")


def test_every_target_has_a_name_of_its_own_and_tests_that_exist() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)
    for target in TARGETS:
        for path in target.tests:
            assert path == "tests/unit" or is_test(path), path
