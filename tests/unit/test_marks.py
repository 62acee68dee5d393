"""Where the next claim begins to look, and what it must not pass by."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nightmail.stores.shared.marks import LEVELS, Marks, Range

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


def test_a_queue_that_was_not_looked_at_for_a_while_does_not_use_up_the_second_of_another() -> None:
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


# -------------------------------------------------------------- where looks behind the marks are dear


def back(place: Place, seconds: float) -> Place:
    return place[0] - timedelta(seconds=seconds), 0


def dear(cost: float = 0.3) -> Marks[Place]:
    """Marks at one place on every level, after two looks from end to end that were dear. The last was at 1.0."""
    marks: Marks[Place] = Marks(back)
    for started in (0.0, 1.0):
        marks.forward("orders", started)
        marks.took(["orders"], started, started + cost, came_back_short=True)
    marks.looked(["orders"], place(60, 0))
    return marks


def test_where_looks_are_dear_the_next_goes_only_a_little_behind_the_marks() -> None:
    marks = dear()

    assert starts(marks.forward("orders", 1.1)) == dict.fromkeys(LEVELS, place(60, 0))
    assert list(marks.behind("orders", 1.1)) == [
        Range("orders", level, start=place(59, 0), end=place(60, 0)) for level in LEVELS
    ]
    assert marks.until_look_behind(["orders"], 1.1) == pytest.approx(2.9)


def test_when_it_is_time_a_dear_look_is_made_as_well() -> None:
    marks = dear()

    assert starts(marks.forward("orders", 4.0)) == {}
    assert not marks.spares("orders", 4.0)
    assert marks.until_look_behind(["orders"], 4.0) is None


def test_a_look_that_was_spared_does_not_put_off_the_next_one_from_end_to_end() -> None:
    marks = dear()
    marks.forward("orders", 3.9)
    marks.took(["orders"], 3.9, 3.9, came_back_short=True)

    assert starts(marks.forward("orders", 4.0)) == {}


def test_where_looks_are_cheap_each_goes_all_the_way_behind_the_marks() -> None:
    marks = dear(cost=0.005)
    marks.found([("orders", 0, place(60, 1))])
    marks.forward("orders", 1.1)

    assert list(marks.behind("orders", 1.1)) == [Range("orders", 0, end=place(60, 1))]


def test_one_dear_look_is_not_enough_and_one_cheap_look_ends_it() -> None:
    marks: Marks[Place] = Marks(back)
    marks.forward("orders", 0.0)
    marks.took(["orders"], 0.0, 0.5, came_back_short=True)
    assert not marks.spares("orders", 0.6)
    marks = dear()
    marks.forward("orders", 4.0)
    marks.took(["orders"], 4.0, 4.001, came_back_short=True)
    assert not marks.spares("orders", 4.1)


def test_what_became_available_again_is_found_where_looks_are_dear() -> None:
    marks = dear()
    marks.lower([("orders", 3, place(5, 9))])

    assert starts(marks.forward("orders", 1.1))[3] == place(5, 9)


def test_after_a_look_that_took_too_long_the_next_begins_where_it_would_have_begun() -> None:
    marks: Marks[Place] = Marks(back)
    marks.forward("orders", 0.0)
    marks.found([("orders", 0, place(60, 1))])
    marks.forward("orders", 1.0)
    marks.gave_up(["orders"], 1.0, 11.0, place(100, 0))

    assert marks.spares("orders", 11.0)
    # Nothing is known of the other levels: what was published meanwhile is not passed by.
    assert starts(marks.forward("orders", 11.0)) == {**dict.fromkeys(LEVELS, place(90, 0)), 0: place(60, 1)}


def test_then_looks_go_back_twice_as_far_each_time() -> None:
    marks: Marks[Place] = Marks(back)
    marks.forward("orders", 0.0)
    marks.gave_up(["orders"], 0.0, 10.0, place(100, 0))
    reached = []
    for now in (11.0, 12.0, 13.0):
        marks.looked(["orders"], place(1000, 0))
        reached.append(starts(marks.forward("orders", now))[0])
        assert not marks.spares("orders", now)
        marks.took(["orders"], now, now, came_back_short=True)

    assert reached == [place(999, 0), place(998, 0), place(996, 0)]
    # And less far when that took too long again.
    marks.looked(["orders"], place(1000, 0))
    assert starts(marks.forward("orders", 14.0))[0] == place(992, 0)
    marks.gave_up(["orders"], 14.0, 24.0, place(1010, 0))
    assert starts(marks.forward("orders", 24.0))[0] == place(1000, 0)
    assert starts(marks.forward("orders", 25.0))[0] == place(998, 0)


def test_in_the_end_a_look_goes_from_end_to_end_again() -> None:
    marks: Marks[Place] = Marks(back)
    marks.forward("orders", 0.0)
    marks.gave_up(["orders"], 0.0, 10.0, place(100, 0))
    now = 10.0
    while marks.is_dear("orders"):
        now += 1.0
        marks.forward("orders", now)
        marks.took(["orders"], now, now, came_back_short=True)
        marks.looked(["orders"], place(100, 0))
        assert now < 50.0

    assert starts(marks.forward("orders", now + 1.0)) == {}


def test_after_an_error_nothing_is_spared() -> None:
    marks = dear()
    marks.forget()

    assert starts(marks.forward("orders", 1.1)) == {}
    assert not marks.is_dear("orders")
