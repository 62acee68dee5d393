"""Lets `help` and `inspect.signature` show every option, though each is declared once, in `options`."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, ForwardRef, TypeVar, get_args

Function = TypeVar("Function", bound=Callable[..., Any])

_WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class Option:
    """What an option is when it is not given, and what it does."""

    default: Any
    text: str


def options_in(known: type[Any]) -> dict[str, Option]:
    """The options that are declared there, and in what it inherits from."""
    return {name: get_args(declared)[1] for name, declared in known.__annotations__.items()}


def lists_options(known: type[Any]) -> Callable[[Function], Function]:
    """Have a function that takes these options as `**options` say so, one by one."""

    def listed(function: Function) -> Function:
        changed: Any = function
        signature = inspect.signature(function)
        named = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        taken = {each.name for each in named}
        options = [each for each in _parameters(known) if each.name not in taken]
        changed.__signature__ = signature.replace(parameters=[*named, *options])
        changed.__doc__ = _with_options(inspect.getdoc(function) or "", known)
        return function

    return listed


def _parameters(known: type[Any]) -> Iterator[inspect.Parameter]:
    for name, declared in known.__annotations__.items():
        hint, option = get_args(declared)
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            # A name that only type checkers import stays text.
            annotation=hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint,
        )


def _with_options(doc: str, known: type[Any]) -> str:
    if "\nArgs:\n" not in doc:
        doc += "\n\nArgs:"
    lines = (
        textwrap.fill(f"{name}: {option.text}", _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)
        for name, option in options_in(known).items()
    )
    return "\n".join([doc, *lines])
