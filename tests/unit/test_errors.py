"""Errors say what is wrong and what to do."""

from __future__ import annotations

import pytest

from nightmail import errors
from nightmail.errors import (
    CannotJoin,
    DriverMissing,
    LeaseLost,
    NightmailError,
    NotInTransaction,
    OtherDatabase,
    PublishUncertain,
    SchemaDrift,
    SchemaMissing,
    SchemaOutdated,
    StoreUnavailable,
    TimerExists,
)


def test_every_error_of_ours_can_be_caught_as_one() -> None:
    ours = [
        each
        for each in vars(errors).values()
        if isinstance(each, type)
        and each.__module__ == "nightmail.errors"
        # Raised in the middle of a handler: `except Exception` there must not swallow it.
        and each is not errors.HandlerTimeout
    ]

    assert len(ours) > 10
    assert all(issubclass(each, NightmailError) for each in ours)


def test_by_default_an_error_says_what_its_docstring_says() -> None:
    assert (
        str(SchemaMissing())
        == "The tables do not exist. Run `nightmail migrate`, or pass `create_tables=True`."
    )
    assert str(StoreUnavailable("the server is gone")) == "the server is gone"


def test_a_lost_lease_names_its_messages() -> None:
    error = LeaseLost([7, 9])

    assert error.ids == (7, 9)
    assert str(error).endswith("Nothing was written. (message 7, 9)")
    assert LeaseLost().ids == ()


def test_facts_are_attributes() -> None:
    timer = TimerExists("mail", "daily")
    assert (timer.queue, timer.timer_id) == ("mail", "daily")
    assert str(timer) == "queue 'mail' already has a message with the timer id 'daily'"

    outdated = SchemaOutdated(found=1, needed=3)
    assert (outdated.found, outdated.needed) == (1, 3)
    assert str(outdated) == "the tables are at version 1, this code needs 3. Run `nightmail migrate`."

    drift = SchemaDrift(["no column x", "no index y"])
    assert drift.differences == ("no column x", "no index y")
    assert "no column x; no index y" in str(drift)

    driver = DriverMissing("asyncpg", "postgres")
    assert str(driver) == "asyncpg is not installed. Run: pip install 'nightmail[postgres]'"


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (CannotJoin, TypeError),
        (NotInTransaction, ValueError),
        (OtherDatabase, ValueError),
        (DriverMissing, ImportError),
        (PublishUncertain, StoreUnavailable),
    ],
)
def test_errors_are_also_of_the_kind_one_would_expect(
    error: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(error, builtin)
