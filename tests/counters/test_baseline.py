"""A cost that changed fails with both numbers, whether it rose or fell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.counters import baseline
from tests.counters.baseline import UPDATE, Costs, at_most, compare, within

KNOWN = {"publish": {"functions": 100.0, "WAL bytes": 480.0}, "claim": {"functions": 1.5}}


@pytest.fixture(autouse=True)
def _written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "HERE", tmp_path)
    write_down(KNOWN, monkeypatch)
    monkeypatch.delenv(UPDATE, raising=False)


def write_down(costs: Costs, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(UPDATE, "1")
        compare("some", "Server 1", costs)


def changed(done: str, **counters: float) -> Costs:
    return {**KNOWN, done: {**KNOWN[done], **{name.replace("_", " "): v for name, v in counters.items()}}}


@pytest.mark.parametrize("functions", [97.5, 100.0, 102.9])
def test_what_is_within_the_tolerance_is_no_change(functions: float) -> None:
    compare("some", "Server 1", changed("publish", functions=functions))


def test_more_fails_with_both_numbers_and_a_likely_cause() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"publish: WAL bytes 480 -> 520, .*index"):
        compare("some", "Server 1", changed("publish", WAL_bytes=520.0))


def test_less_is_to_be_written_down() -> None:
    with pytest.raises(
        pytest.fail.Exception, match=r"claim: functions 1\.5 -> 1, less than before: write it"
    ):
        compare("some", "Server 1", changed("claim", functions=1.0))


def test_what_is_counted_but_not_written_down_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="settle: functions is not written down"):
        compare("some", "Server 1", {**KNOWN, "settle": {"functions": 1.0}})


def test_what_is_no_longer_counted_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="claim: functions is no longer counted"):
        compare("some", "Server 1", {"publish": KNOWN["publish"]})


def test_on_another_release_of_the_server_only_functions_are_compared() -> None:
    with pytest.raises(pytest.skip.Exception, match="counted on Server 1; of Server 2 only the functions"):
        compare("some", "Server 2", changed("publish", WAL_bytes=900.0))
    with pytest.raises(pytest.fail.Exception, match="publish: functions 100 -> 110"):
        compare("some", "Server 2", changed("publish", functions=110.0))


def test_more_than_the_most_fails_with_both_numbers_and_a_likely_cause(tmp_path: Path) -> None:
    (tmp_path / "most.txt").write_text("idle\n  # Looks: two.\n  statements: 2\n")

    at_most("idle", "statements", 1)
    at_most("idle", "statements", 2)
    with pytest.raises(
        pytest.fail.Exception, match=r"idle: statements 2 -> 3, more than before\. Likely: .*looks"
    ):
        at_most("idle", "statements", 3)


def test_only_what_changed_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_down(changed("publish", functions=100.9, WAL_bytes=440.0), monkeypatch)

    assert (tmp_path / "some.txt").read_text().splitlines()[3:6] == [
        "publish",
        "  functions: 100",
        "  WAL bytes: 440",
    ]


def test_a_plan_that_does_more_than_there_is_reason_for_fails_with_both_numbers_and_the_likely_cause() -> (
    None
):
    within("rows", 100, 100)

    with pytest.raises(
        pytest.fail.Exception, match=r"^rows: 101, at most 100 wanted\. Likely: a plan that reads rows"
    ):
        within("rows", 101, 100)
