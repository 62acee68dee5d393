"""A cost that changed fails with both numbers, whether it rose or fell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.counters import baseline
from tests.counters.baseline import UPDATE, Costs, at_most, compare, exactly, within

KNOWN = {"publish": {"functions": 100.0, "WAL bytes": 480.0, "rows": 300.0}, "claim": {"functions": 1.5}}


@pytest.fixture(autouse=True)
def _written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "HERE", tmp_path)
    monkeypatch.setattr(baseline, "VARIES", {("some", "WAL bytes"): 0.03})
    write_down(KNOWN, monkeypatch)
    monkeypatch.delenv(UPDATE, raising=False)


def write_down(costs: Costs, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(UPDATE, "1")
        compare("some", "Server 1", costs)


def changed(done: str, **counters: float) -> Costs:
    return {**KNOWN, done: {**KNOWN[done], **{name.replace("_", " "): v for name, v in counters.items()}}}


@pytest.mark.parametrize("wal_bytes", [466.0, 480.0, 494.0])
def test_what_varies_may_be_a_little_more_or_less(wal_bytes: float) -> None:
    compare("some", "Server 1", changed("publish", WAL_bytes=wal_bytes))


def test_one_function_more_for_a_message_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"publish: functions 100 -> 101, .*a wrapper"):
        compare("some", "Server 1", changed("publish", functions=101.0))


def test_one_function_less_for_a_batch_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"claim: functions 1\.5 -> 1\.47, less than before"):
        compare("some", "Server 1", changed("claim", functions=1.47))


@pytest.mark.parametrize("functions", [1.49, 1.51])
def test_of_calls_that_many_messages_share_a_few_more_or_less_are_no_change(functions: float) -> None:
    compare("some", "Server 1", changed("claim", functions=functions))


def test_what_varies_on_one_store_is_exact_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "VARIES", {("another", "WAL bytes"): 0.03})

    with pytest.raises(pytest.fail.Exception, match="publish: WAL bytes 480 -> 481"):
        compare("some", "Server 1", changed("publish", WAL_bytes=481.0))


def test_on_another_python_the_functions_may_be_a_few_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "PYTHON", "3.99")

    compare("some", "Server 1", changed("publish", functions=102.0))
    with pytest.raises(pytest.fail.Exception, match="publish: functions 100 -> 104"):
        compare("some", "Server 1", changed("publish", functions=104.0))


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


def test_on_another_release_of_the_server_only_what_does_not_depend_on_it_is_compared() -> None:
    with pytest.raises(pytest.skip.Exception, match="counted on Server 1; of Server 2 only what is the same"):
        compare("some", "Server 2", changed("publish", WAL_bytes=900.0, rows=302.0))
    with pytest.raises(pytest.fail.Exception, match="publish: functions 100 -> 110"):
        compare("some", "Server 2", changed("publish", functions=110.0))
    with pytest.raises(pytest.fail.Exception, match=r"publish: rows 300 -> 304, .*a plan that reads"):
        compare("some", "Server 2", changed("publish", rows=304.0))


def test_on_another_server_only_functions_are_compared() -> None:
    with pytest.raises(
        pytest.skip.Exception, match="counted on Server 1; of Another 1 only what is the same"
    ):
        compare("some", "Another 1", changed("publish", rows=900.0))
    with pytest.raises(pytest.fail.Exception, match="publish: functions 100 -> 110"):
        compare("some", "Another 1", changed("publish", functions=110.0))


def test_more_than_the_most_fails_with_both_numbers_and_a_likely_cause(tmp_path: Path) -> None:
    (tmp_path / "most.txt").write_text("idle\n  # Looks: two.\n  statements: 2\n")

    at_most("idle", "statements", 1)
    at_most("idle", "statements", 2)
    with pytest.raises(
        pytest.fail.Exception, match=r"idle: statements 2 -> 3, more than before\. Likely: .*looks"
    ):
        at_most("idle", "statements", 3)


def test_what_varies_a_little_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_down(changed("publish", functions=101.0, WAL_bytes=482.0), monkeypatch)

    assert (tmp_path / "some.txt").read_text().splitlines()[5:8] == [
        "publish",
        "  functions: 101",
        "  WAL bytes: 480",
    ]


def test_a_plan_that_does_more_than_there_is_reason_for_fails_with_both_numbers_and_the_likely_cause() -> (
    None
):
    within("rows", 100, 100)

    with pytest.raises(
        pytest.fail.Exception, match=r"^rows: 101, at most 100 wanted\. Likely: a plan that reads rows"
    ):
        within("rows", 101, 100)


def test_what_must_be_exact_fails_whether_there_is_more_or_less() -> None:
    exactly("steps", 100, 100)

    with pytest.raises(pytest.fail.Exception, match=r"^steps: 101, at most 100 wanted\. Likely: a plan"):
        exactly("steps", 101, 100)
    with pytest.raises(pytest.fail.Exception, match=r"^steps: 99, 100 wanted\. Less: "):
        exactly("steps", 99, 100)
