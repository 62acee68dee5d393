"""One seam, several listeners."""

from __future__ import annotations

import logging

import pytest

from nightmail.message import Delivery
from nightmail.observe import LoggingObserver, Observer, Observers
from tests.unit.support import delivery

ONE = delivery(id=7)


class Lists(Observer):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def started(self, delivery: Delivery) -> None:
        self.heard.append(("started", delivery.id))

    def drained(self, left: int) -> None:
        self.heard.append(("drained", left))


class Raises(Observer):
    """Cannot bear to hear of a start."""

    def started(self, delivery: Delivery) -> None:
        raise ValueError("hunter2")


def test_everybody_hears_what_they_care_about() -> None:
    first, second = Lists(), Lists()
    observers = Observers(first, Observer(), second)

    observers.started(ONE)
    observers.woken()
    observers.drained(3)

    assert first.heard == second.heard == [("started", 7), ("drained", 3)]


def test_one_that_raises_does_not_disturb_the_others() -> None:
    before, after = Lists(), Lists()

    Observers(before, Raises(), after).started(ONE)

    assert before.heard == after.heard == [("started", 7)]


def test_what_one_raises_is_logged_once_and_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    observers = Observers(Raises())

    observers.started(ONE)
    observers.started(ONE)

    assert [record.getMessage() for record in caplog.records] == [
        "Raises raised ValueError when told of 'started'; it is told on, but this is not logged again"
    ]
    assert "hunter2" not in caplog.text


def test_several_may_be_among_several() -> None:
    inner = Lists()

    Observers(Observers(inner)).drained(1)

    assert inner.heard == [("drained", 1)]


def test_an_account_that_may_not_listen() -> None:
    Observers().started(ONE)


def test_the_log_is_one_of_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="nightmail")

    Observers(LoggingObserver(), Lists()).drained(1)

    assert len(caplog.records) == 1
