"""What the verbs of this store ask for, besides a plain statement (`Ask`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Verb


class FirstAsk(Ask):
    """A statement that must be the first of its transaction, if nothing else was sent in it.

    At repeatable read rows are seen as of the first statement: a lease that is renewed after it would seem lost.
    """

    __slots__ = ()


class CustomPlan(NamedTuple):
    """A rare statement with many optional conditions: planned for its own values."""

    statement: Statement
    values: Mapping[str, Any]
    readonly: bool = True


class InTransaction(NamedTuple):
    """A verb whose statements are committed together; the reply is its result."""

    verb: Verb[Any]
