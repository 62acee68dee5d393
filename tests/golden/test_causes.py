"""A verb that sends something else fails with both numbers and a likely cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.causes import causes, read
from tests.golden.golden import HERE, UPDATE, check

OLD, NEW = "0123456789ab", "ba9876543210"


def entry(cost: str, *trips: str, title: str = "publish: two") -> str:
    return (
        "\n".join(["# What each verb sends.", "", f"{title}: {cost}", *(f"  {trip}" for trip in trips)])
        + "\n"
    )


def test_a_statement_more_is_named() -> None:
    before = entry("1 round trip", f"publish: publish {OLD}")
    after = entry("1 round trip", f"publish: publish {OLD}; notify {OLD}")

    assert causes(before, after) == [
        "publish: two: round trips 1 -> 1, statements 1 -> 2. Likely: a statement more: notify"
    ]


def test_a_statement_more_in_a_round_trip_of_its_own() -> None:
    before = entry("1 round trip", f"publish: publish {OLD}")
    after = entry("2 round trips", f"publish: publish {OLD}", "publish: select 1")

    assert causes(before, after) == [
        "publish: two: round trips 1 -> 2, statements 1 -> 2. Likely: a statement more: select 1, in more round trips"
    ]


def test_the_same_statement_more_often() -> None:
    before = entry("1 round trip", f"publish: publish {OLD}")
    after = entry("2 round trips", f"publish: publish {OLD} (× 2)")

    assert causes(before, after) == [
        "publish: two: round trips 1 -> 2, statements 1 -> 2. Likely: a statement more: publish, which is sent more "
        "often: in smaller parts, or for what is known already, in more round trips"
    ]


def test_a_statement_that_is_prepared_each_time() -> None:
    before = entry("1 round trip", f"publish: publish {OLD}")
    after = entry("2 round trips", f"publish: prepare publish {OLD}", f"publish: publish {OLD}")

    assert causes(before, after) == [
        "publish: two: round trips 1 -> 2, statements 1 -> 2. Likely: a statement more: prepare publish, prepared each "
        "time: its text is another each time, or its connection is new, in more round trips"
    ]


def test_a_statement_less_is_to_be_written_down() -> None:
    before = entry("1 round trip", f"publish: publish {OLD}; notify {OLD} (× 3)")
    after = entry("1 round trip", f"publish: publish {OLD}; notify {OLD}")

    assert causes(before, after) == [
        "publish: two: round trips 1 -> 1, statements 4 -> 2. Likely: 2 statements less: notify (× 2): write it down"
    ]


def test_the_same_statements_in_more_round_trips() -> None:
    before = entry("1 round trip", f"publish: begin; publish {OLD}; commit")
    after = entry("2 round trips", f"publish: begin; publish {OLD}", "publish: commit")

    assert causes(before, after) == [
        "publish: two: round trips 1 -> 2, statements 3 -> 3. Likely: the same statements in more round trips: one is "
        "no longer sent in the same packet"
    ]


def test_the_same_statements_in_fewer_round_trips_are_to_be_written_down() -> None:
    before = entry("2 round trips", f"publish: publish {OLD}", "publish: commit")
    after = entry("1 round trip", f"publish: publish {OLD}; commit")

    assert causes(before, after) == [
        "publish: two: round trips 2 -> 1, statements 2 -> 2. Likely: the same statements in fewer round trips: write "
        "it down"
    ]


def test_another_text_of_the_same_statement() -> None:
    before = entry("1 round trip", f"publish: EVALSHA publish {OLD} on 2 keys")
    after = entry("1 round trip", f"publish: EVALSHA publish {NEW} on 2 keys")

    assert causes(before, after) == [
        "publish: two: round trips 1 -> 1, statements 1 -> 1. Likely: another text: EVALSHA publish on 2 keys"
    ]


def test_a_statement_in_place_of_another() -> None:
    before = entry("1 round trip", f"publish: publish {OLD}")
    after = entry("1 round trip", f"publish: publish_unique {OLD}")

    assert causes(before, after) == [
        "publish: two: round trips 1 -> 1, statements 1 -> 1. Likely: publish_unique in place of publish"
    ]


def test_another_connection_and_another_order() -> None:
    before = entry("2 round trips", "publish: select 1", "claim: select 2")

    assert causes(before, entry("2 round trips", "publish: select 1", "publish: select 2")) == [
        "publish: two: round trips 2 -> 2, statements 2 -> 2. Likely: the same statements on another connection"
    ]
    assert causes(before, entry("2 round trips", "claim: select 2", "publish: select 1")) == [
        "publish: two: round trips 2 -> 2, statements 2 -> 2. Likely: the same round trips in another order"
    ]


def test_what_was_refused_and_is_not_any_more() -> None:
    before = entry("refused with CannotJoin, 0 round trips")
    after = entry("1 round trip", "publish: select 1")

    assert causes(before, after) == [
        "publish: two: round trips 0 -> 1, statements 0 -> 1. Likely: refused with CannotJoin before, with nothing now"
    ]


def test_round_trips_whose_number_is_not_fixed_are_not_counted() -> None:
    before = entry("any number of round trips", f"listen: listen {OLD}")
    after = entry("any number of round trips", f"listen: listen {OLD}", "listen: select 1")

    assert causes(before, after) == ["publish: two: statements 1 -> 2. Likely: a statement more: select 1"]


def test_what_is_new_and_what_is_gone() -> None:
    before, after = entry("0 round trips", title="open"), entry("0 round trips", title="close")

    assert causes(before, after) == ["close: it is not written down", "open: it is no longer recorded"]


def test_what_happened_to_several_verbs_is_said_once() -> None:
    before = "".join(
        entry("1 round trip", f"claim: claim {OLD}", title=title) for title in ("one", "two", "three")
    )
    after = before.replace(OLD, NEW)

    assert causes(before, after) == [
        "one (and 2 more): round trips 1 -> 1, statements 1 -> 1. Likely: another text: claim"
    ]


@pytest.mark.parametrize("store", ["sqlite", "postgres", "mysql", "redis"])
def test_a_golden_file_is_read_with_as_many_round_trips_as_it_says(store: str) -> None:
    entries = read((HERE / f"{store}.txt").read_text("utf-8"))

    assert entries
    for title, cost in entries.items():
        if cost.counted:
            assert int(cost.cost.split()[-3]) == len(cost.trips), title


def test_a_difference_fails_with_its_cause_and_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(UPDATE, raising=False)
    file = tmp_path / "some.txt"
    file.write_text(entry("1 round trip", f"publish: publish {OLD}; commit"), "utf-8")

    with pytest.raises(pytest.fail.Exception) as failed:
        check(file, entry("2 round trips", f"publish: publish {OLD}", "publish: commit"))

    assert "publish: two: round trips 1 -> 2, statements 2 -> 2. Likely: the same" in str(failed.value)
    assert "+publish: two: 2 round trips" in str(failed.value)
