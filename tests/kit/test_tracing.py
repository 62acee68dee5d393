"""Which tests coverage sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from testkit.tracing import UNTRACED, is_traced, worth_tracing

REPOSITORY = Path(__file__).parents[2]

PROGRAM = """
    import threading

    import coverage

    from testkit.tracing import traced, untraced

    def seen():
        pass

    def unseen():
        pass

    def seen_within():
        pass

    def seen_in_a_thread_within():
        pass

    def seen_again():
        pass

    measured = coverage.Coverage(data_file=None, include=[__file__])
    measured.start()
    seen()
    with untraced():
        unseen()
        thread = threading.Thread(target=unseen)
        thread.start()
        thread.join()
        with traced():
            unseen()
    with untraced(wholly=False):
        unseen()
        with traced():
            seen_within()
            thread = threading.Thread(target=seen_in_a_thread_within)
            thread.start()
            thread.join()
            with untraced():
                unseen()
        unseen()
    thread = threading.Thread(target=seen_again)
    thread.start()
    thread.join()
    measured.stop()
    lines = measured.get_data().lines(__file__)
    source = open(__file__).read().splitlines()
    for number in sorted(lines):
        if source[number - 1].strip() == "pass":
            print(source[number - 2].split()[1])
"""


def test_coverage_sees_nothing_of_the_block_but_what_it_is_told_to_and_goes_on_after_it(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(dedent(PROGRAM))

    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["seen():", "seen_within():", "seen_in_a_thread_within():", "seen_again():"]


@pytest.mark.parametrize("pattern", [pattern for patterns in UNTRACED.values() for pattern in patterns])
def test_what_is_named_exists(pattern: str) -> None:
    files, _, inside = pattern.partition("::")
    sources = [file.read_text() for file in REPOSITORY.glob(files) if file.is_file()]

    assert any(f"class {inside.partition('::')[0].rstrip('*')}" in source for source in sources) or (
        sources and inside in ("", "*")
    )


def test_a_store_is_seen_where_it_keeps_the_contract_for_the_first_time() -> None:
    assert is_traced("tests/stores/postgres/test_conformance.py::TestPostgres::test_a_message[1]")
    assert not is_traced(
        "tests/stores/postgres/test_conformance.py::TestPostgresWithPsycopg::test_a_message[1]"
    )


def test_a_test_is_seen_once_with_the_first_parameters_that_are_not_left_out() -> None:
    module = "tests/stores/postgres/test_conformance.py"
    once = [f"{module}::TestPostgres::test_a_message[1]", f"{module}::TestPostgres::test_a_batch"]
    again = [
        f"{module}::TestPostgres::test_a_message[2]",
        f"{module}::TestPostgresWithPsycopg::test_a_batch",
    ]

    assert worth_tracing([*once, *again]) == frozenset(once)
