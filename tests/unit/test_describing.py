"""What an error says in a dead letter, a log line or a span: its own words, and nothing of the message."""

from __future__ import annotations

from typing import Any, Literal, cast

import pydantic
import pytest
from fast_depends import inject
from sqlalchemy.exc import IntegrityError

from nightmail.describing import describe, in_words, one_line
from nightmail.errors import PublishUncertain, StoreUnavailable

SECRET = "hunter2"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Order(pydantic.BaseModel):
    total: int


def _typed(total: int) -> None: ...


def raised_by(action: Any) -> Exception:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is described
        return error
    raise AssertionError("nothing was raised")


def test_an_ordinary_error_is_shown_as_it_shows_itself() -> None:
    assert describe(ValueError("no such customer")) == "ValueError('no such customer')"


@pytest.mark.parametrize(
    "error",
    [
        raised_by(lambda: Order.model_validate({"total": SECRET})),
        raised_by(lambda: pydantic.TypeAdapter(int).validate_python(SECRET)),
        raised_by(lambda: pydantic.TypeAdapter(Cat | Dog, config=None).validate_python({"kind": SECRET})),
        raised_by(lambda: inject(_typed)(total=cast(Any, SECRET))),
        raised_by((SECRET.encode() + b"\xff").decode),
        IntegrityError(
            "insert into t values (:v)",
            {"v": SECRET},
            Exception(f"duplicate key\nDETAIL:  Key (v)=({SECRET}) already exists."),
        ),
        Exception(f"duplicate key\nDETAIL:  Key (v)=({SECRET}) already exists."),
        ExceptionGroup("two", [raised_by(lambda: Order.model_validate({"total": SECRET}))]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_library_quotes_of_the_input_is_left_out(error: Exception) -> None:
    assert SECRET not in describe(error)
    assert SECRET not in one_line(describe(error))


def test_what_was_wrong_with_the_input_is_said() -> None:
    error = raised_by(lambda: Order.model_validate({"total": SECRET}))

    assert describe(error) == (
        "ValidationError: Order: total: Input should be a valid integer, unable to parse string as an integer"
    )


def test_the_tag_of_a_union_is_input_too() -> None:
    class Basket(pydantic.BaseModel):
        pet: Cat | Dog = pydantic.Field(discriminator="kind")

    error = raised_by(lambda: Basket.model_validate({"pet": {"kind": SECRET}}))

    assert describe(error) == "ValidationError: Basket: pet: union_tag_invalid"


def test_an_error_that_stands_in_for_another_is_told_by_that() -> None:
    error = StoreUnavailable()
    error.__cause__ = ConnectionRefusedError(111, "refused")

    assert in_words(error) == "ConnectionRefusedError(111, 'refused')"


def test_an_error_with_words_of_its_own_keeps_them() -> None:
    error = PublishUncertain("cannot reach db:5432")
    error.__cause__ = OSError("no route")

    assert in_words(error) == "cannot reach db:5432: OSError('no route')"


def test_words_are_not_said_twice() -> None:
    error = StoreUnavailable("cannot reach db:5432: no route")
    error.__cause__ = OSError("no route")

    assert in_words(error) == "cannot reach db:5432: no route"


def test_the_words_of_an_operating_system_are_not_said_twice() -> None:
    error = StoreUnavailable("cannot connect to db:5432: Connect call failed")
    error.__cause__ = ConnectionRefusedError(111, "Connect call failed")

    assert in_words(error) == "cannot connect to db:5432: Connect call failed"


def test_a_line_is_one_line_and_not_too_long() -> None:
    assert one_line("a\nb\x1b[2J\u202ec") == "a\\nb\\x1b[2J\\u202ec"
    assert len(one_line("x" * 10_000)) == 500
