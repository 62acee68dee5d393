"""The page of versions says what runs have shown, and for which of them the suite or the store has changed since."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from compat.__main__ import PAGE, load
from compat.changed import changed, is_known
from compat.collected import collected
from compat.table import page, total
from compat.targets import MARIADB, ON_MYSQL, ON_REDIS, REDIS, TARGETS, Here, Target
from testkit.test_names import is_test


def test_the_page_shows_the_results_and_marks_those_of_an_older_suite_or_store() -> None:
    results = load()
    if not all(is_known(result["commit"]) for result in results.values() if result.get("commit")):
        pytest.skip("git does not know the commits here")

    # If this fails: `make compat ARGS=--page`.
    assert PAGE.read_text("utf-8") == page(results, collected(TARGETS), changed(TARGETS, results))


def test_a_row_is_old_when_the_suite_has_other_tests_by_now() -> None:
    results: dict[str, dict[str, Any]] = {
        "Postgres 18": {"version": "18.4", "passed": 9, "skipped": 1, "failed": 0, "commit": "abc1234"},
        "Redis": {
            "version": "8.0",
            "passed": 9,
            "failed": 1,
            "broken": ["tests.x.Suite::test_a[1]", "tests.x.Suite::test_a[2]"],
        },
        "Valkey": {"cannot": "there is none"},
    }

    text = page(results, {"Postgres 18": 10, "Redis": 11, "Valkey": 11, "Python 3.14": 5}, set())

    assert total(results["Postgres 18"]) == 10
    assert "| Postgres 18 | 18.4 | 9 | 1 | 0 | abc1234 |  |\n" in text
    assert "| Redis | 8.0 | 9 | 0 | 1 | not noted | old |\n" in text
    assert "\nWhat failed:\n\n- Redis: `test_a`\n" in text
    assert text.endswith("written:\n\n- Valkey: there is none\n\nNot tried:\n\n- Python 3.14\n")


def test_a_row_is_old_when_its_store_has_changed_though_the_tests_have_not() -> None:
    results = {"Redis": {"version": "8.0", "passed": 9, "failed": 0, "commit": "abc1234"}}

    assert "| Redis | 8.0 | 9 | 0 | 0 | abc1234 |  |\n" in page(results, {"Redis": 9}, set())
    assert "| Redis | 8.0 | 9 | 0 | 0 | abc1234 | old |\n" in page(results, {"Redis": 9}, {"Redis"})


def test_a_store_has_changed_when_any_file_of_it_or_of_what_it_shares_differs_from_the_commit(
    tmp_path: Path,
) -> None:
    redis = Target(name="Redis", source=Here(), tests=REDIS, stores=ON_REDIS, program="redis-server")
    mariadb = Target(name="MariaDB", source=Here(), tests=MARIADB, stores=ON_MYSQL, program="mariadbd")
    targets = redis, mariadb
    stores = tmp_path / "src" / "nightmail" / "stores"
    for directory in ("redis", "mysql", "shared", "sql"):
        (stores / directory).mkdir(parents=True)
        (stores / directory / "store.py").write_text("before\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    results = {"Redis": {"commit": commit}, "MariaDB": {"commit": commit}}

    assert changed(targets, results, tmp_path) == set()

    (stores / "sql" / "store.py").write_text("after\n")
    assert changed(targets, results, tmp_path) == {"MariaDB"}  # Not committed yet.

    git(tmp_path, "commit", "-qam", "two")
    assert changed(targets, results, tmp_path) == {"MariaDB"}

    (stores / "shared" / "store.py").write_text("after\n")
    assert changed(targets, results, tmp_path) == {"Redis", "MariaDB"}

    git(tmp_path, "checkout", "-q", commit, "--", ".")
    assert changed(targets, results, tmp_path) == set()


@pytest.mark.parametrize("result", [{}, {"commit": ""}, {"commit": "0000000"}])
def test_of_a_result_without_a_known_commit_the_store_counts_as_changed(result: dict[str, str]) -> None:
    redis = next(target for target in TARGETS if target.name.startswith("Redis"))

    assert changed([redis], {redis.name: result}) == {redis.name}


def test_every_store_of_a_target_is_a_directory() -> None:
    stores = Path(__file__).parents[2] / "src" / "nightmail" / "stores"

    assert {store for target in TARGETS for store in target.stores if not (stores / store).is_dir()} == set()


def git(root: Path, *arguments: str) -> str:
    options = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *options, *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_every_target_has_a_name_of_its_own_and_tests_that_exist() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)
    for target in TARGETS:
        for path in target.tests:
            assert path == "tests/unit" or is_test(path), path
