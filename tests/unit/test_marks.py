"""Where the next claim begins to look, and what it must not pass by."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from nightmail.stores._marks import Marks, Range

Place = tuple[datetime, int]

NOON = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
EVERY_LEVEL = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


def place(second: int, id_: int) -> Place:
    return NOON + timedelta(seconds=second), id_


def starts(ranges: list[Range[Place]]) -> dict[int, Place]:
    """Where each level begins, without those that begin at the beginning."""
    return {found.level: found.start for found in ranges if found.start is not None}


def test_the_first_look_goes_through_every_level_from_end_to_end() -> None:
    marks: Marks[Place] = Marks()

    looked = marks.forward("orders", 0.0)

    assert [found.level for found in looked] == EVERY_LEVEL
    assert {(found.start, found.end) for found in looked} == {(None, None)}
    assert list(marks.behind("orders")) == []


def test_the_next_look_begins_at_the_first_of_what_was_taken() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.found([("orders", 0, place(2, 7)), ("orders", 0, place(1, 9)), ("orders", 0, place(3, 1))])

    assert starts(marks.forward("orders", 0.5)) == {0: place(1, 9)}
    assert list(marks.behind("orders")) == [Range("orders", 0, end=place(1, 9))]


def test_of_messages_due_at_the_same_moment_the_lowest_id_is_the_mark() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.found([("orders", 0, place(0, 12)), ("orders", 0, place(0, 11)), ("orders", 0, place(0, 13))])

    assert starts(marks.forward("orders", 0.1)) == {0: place(0, 11)}


def test_every_level_and_every_queue_has_a_mark_of_its_own() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.forward("refunds", 0.0)
    marks.found([("orders", 0, place(5, 1)), ("orders", 9, place(8, 2)), ("refunds", 3, place(1, 3))])

    assert starts(marks.forward("orders", 0.1)) == {9: place(8, 2), 0: place(5, 1)}
    assert starts(marks.forward("refunds", 0.1)) == {3: place(1, 3)}
    assert [found.level for found in marks.behind("orders")] == [9, 0]


def test_a_look_that_finds_something_behind_the_mark_takes_the_mark_back_with_it() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.found([("orders", 0, place(60, 100))])
    marks.found([("orders", 0, place(1, 5))])

    assert starts(marks.forward("orders", 0.5)) == {0: place(1, 5)}


def test_a_look_that_finds_nothing_leaves_the_marks_where_they_are() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.found([("orders", 0, place(60, 100))])
    marks.found([])

    assert starts(marks.forward("orders", 0.5)) == {0: place(60, 100)}


def test_once_a_second_the_look_goes_from_end_to_end() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 10.0)
    marks.found([("orders", 0, place(1, 1))])

    assert starts(marks.forward("orders", 10.999)) == {0: place(1, 1)}
    assert starts(marks.forward("orders", 11.0)) == {}
    assert list(marks.behind("orders")) == []


def test_a_queue_that_nobody_looked_at_for_a_while_does_not_use_up_the_second_of_another() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.found([("orders", 0, place(1, 1))])
    marks.forward("refunds", 0.9)

    assert starts(marks.forward("orders", 1.0)) == {}


def test_a_clock_set_back_ends_the_marks() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 100.0)
    marks.found([("orders", 0, place(1, 1))])

    assert starts(marks.forward("orders", 40.0)) == {}


def test_after_an_error_the_look_goes_from_end_to_end() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.found([("orders", 0, place(1, 1))])

    marks.forget()

    assert starts(marks.forward("orders", 0.1)) == {}


def test_looks_from_end_to_end_that_take_long_get_rarer() -> None:
    marks: Marks[Place] = Marks()
    for started in (0.0, 1.0):
        marks.forward("orders", started)
        marks.took(["orders"], started, started + 0.5)
    marks.found([("orders", 0, place(1, 1))])

    assert starts(marks.forward("orders", 5.9)) == {0: place(1, 1)}
    assert starts(marks.forward("orders", 6.0)) == {}


def test_one_slow_look_from_end_to_end_blinds_nothing() -> None:
    """The server may have stood still for three seconds, and it is found a second later what came meanwhile."""
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.took(["orders"], 0.0, 0.01)
    marks.forward("orders", 1.0)
    marks.took(["orders"], 1.0, 4.0)
    marks.found([("orders", 0, place(1, 1))])

    assert starts(marks.forward("orders", 4.1)) == {}
    marks.took(["orders"], 4.1, 4.2)
    marks.found([("orders", 0, place(1, 1))])

    assert starts(marks.forward("orders", 5.0)) == {0: place(1, 1)}
    assert starts(marks.forward("orders", 5.2)) == {}


def test_what_became_available_behind_the_mark_is_where_the_next_look_begins() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.found([("orders", 0, place(60, 100))])
    marks.lower([("orders", 0, place(5, 9)), ("orders", 0, place(7, 3)), ("refunds", 0, place(1, 1))])

    assert starts(marks.forward("orders", 0.1)) == {0: place(5, 9)}


def test_what_became_available_while_a_look_was_under_way_is_not_forgotten_by_what_that_finds() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.lower([("orders", 0, place(5, 9))])
    marks.found([("orders", 0, place(60, 100))])

    assert starts(marks.forward("orders", 0.1)) == {0: place(5, 9)}
    marks.found([("orders", 0, place(70, 200))])
    assert starts(marks.forward("orders", 0.2)) == {0: place(70, 200)}


def test_what_became_available_before_the_mark_changes_nothing() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.lower([("orders", 0, place(90, 1))])
    assert starts(marks.forward("orders", 0.1)) == {}
    marks.found([("orders", 0, place(60, 100))])
    marks.lower([("orders", 0, place(90, 1))])

    assert starts(marks.forward("orders", 0.2)) == {0: place(60, 100)}


def test_a_slow_look_from_the_marks_says_nothing_about_looks_from_end_to_end() -> None:
    marks: Marks[Place] = Marks()
    marks.forward("orders", 0.0)
    marks.took(["orders"], 0.0, 0.01)
    marks.found([("orders", 0, place(1, 1))])
    marks.forward("orders", 0.5)
    marks.took(["orders"], 0.5, 0.9)

    assert starts(marks.forward("orders", 1.0)) == {}
