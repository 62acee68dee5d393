"""Medians, spreads, ratios, and what they say about a bound."""

from __future__ import annotations

import pytest

from benchmarks.adapters.tally import Tally, percentile, summarize
from benchmarks.bounds import Bound, Place
from benchmarks.results import Results, Row, Table
from benchmarks.show import table_lines
from benchmarks.statistics import Spread, holds, ratio, spread

OURS = Place("drain", "typed", "postgres", "nightmail")
THEIRS = Place("drain", "typed", "postgres", "a peer")


def measured(ours: list[float], theirs: list[float]) -> Results:
    table = Table("drain", "typed", "postgres", "messages/s")
    table.rows = [Row("nightmail", ours), Row("a peer", theirs)]
    return Results(quick=False, tables=[table])


def test_a_spread_is_the_median_with_the_least_and_the_most() -> None:
    assert spread([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0)
    assert spread([1.0, 2.0]).median == 1.5


def test_a_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="median"):
        spread([])


def test_a_ratio_is_taken_round_by_round() -> None:
    # The second round was slow for both. The ratio of the medians would be 100 / 30.
    assert ratio([100.0, 20.0, 300.0], [50.0, 10.0, 30.0]) == Spread(2.0, 2.0, 10.0)


def test_rounds_that_only_one_side_has_are_left_out_of_a_ratio() -> None:
    assert ratio([10.0, 99.0], [5.0]) == Spread(2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("value", "at_least", "at_most", "expected"),
    [
        (1.4, 1.4, None, True),
        (1.39, 1.4, None, False),
        (50.0, None, 50.0, True),
        (50.1, None, 50.0, False),
    ],
)
def test_a_bound_itself_is_allowed(
    value: float, at_least: float | None, at_most: float | None, expected: bool
) -> None:
    assert holds(value, at_least=at_least, at_most=at_most) is expected


def test_a_verdict_compares_the_median_ratio_with_the_bound() -> None:
    bound = Bound("drain", OURS, THEIRS, at_least=2.0)

    assert bound.judged(measured([30.0, 20.0, 10.0], [10.0, 10.0, 10.0])).word == "holds"
    assert bound.judged(measured([19.0, 19.0, 90.0], [10.0, 10.0, 10.0])).word == "MISSED"


def test_a_share_is_in_per_cent() -> None:
    verdict = Bound("share", OURS, THEIRS, at_least=85, unit="%").judged(measured([80.0], [100.0]))

    assert (verdict.value, verdict.holds) == (Spread(80.0, 80.0, 80.0), False)


def test_what_was_not_measured_is_neither_held_nor_missed() -> None:
    bound = Bound("drain", OURS, THEIRS, at_least=2.0)

    assert bound.judged(measured([10.0], [])).word == "not measured"
    assert bound.judged(Results(quick=False)).word == "not measured"


def test_judging_adds_no_row_to_a_table() -> None:
    results = measured([10.0], [])
    results.tables[0].rows.pop()

    Bound("drain", OURS, THEIRS, at_least=2.0).judged(results)

    assert [row.system for row in results.tables[0].rows] == ["nightmail"]


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 101)]

    assert [percentile(values, share) for share in (0.01, 0.5, 0.95, 0.99, 1.0)] == [1, 50, 95, 99, 100]
    assert percentile([7.0], 0.5) == 7.0


def test_a_summary_of_nothing_says_so() -> None:
    assert summarize([]) == {"count": 0}


def test_a_tally_counts_batches_and_marks_every_thousandth() -> None:
    tally = Tally()

    tally.some(600)
    tally.some(600)
    tally.some(600)

    assert (tally.count, tally.with_first, len(tally.marks)) == (1800, 600, 1)


def test_a_round_in_which_the_other_has_nothing_is_left_out_of_a_ratio() -> None:
    # What is a difference of two times can be nothing, or less.
    assert ratio([10.0, 99.0, 99.0], [5.0, 0.0, -1.0]) == Spread(2.0, 2.0, 2.0)
    assert ratio([10.0], [0.0]) is None


def test_a_bound_of_a_ratio_without_a_round_is_not_measured() -> None:
    verdict = Bound("share", OURS, THEIRS, at_most=30, unit="%").judged(measured([80.0], [0.0]))

    assert verdict.word == "not measured"


def test_a_ratio_of_several_rounds_is_shown_with_its_spread() -> None:
    table = measured([20.0, 30.0, 23.0], [10.0, 10.0, 10.0]).tables[0]

    assert [line.partition("  x ")[2] for line in table_lines(table)[1:]] == [
        "",
        "2.30 (2.00 to 3.00)  10.0 to 10.0, 3 rounds",
    ]


def test_a_ratio_of_one_round_has_no_spread() -> None:
    assert table_lines(measured([20.0, 30.0], [10.0]).tables[0])[-1].endswith("  x 2.00")


def test_a_table_with_nothing_to_compare_shows_no_ratio() -> None:
    table = measured([80.0], [0.0]).tables[0]

    assert "x" not in table_lines(table)[-1]
