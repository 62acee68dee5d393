"""Everything a user types or catches is importable from `nightmail`, under one name."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, get_args

import pytest

import nightmail
import nightmail.annotations
from nightmail import broker, errors
from nightmail.broker import options
from nightmail.broker.message import OutboxBatchMessage, OutboxMessage
from tests.broker.support import Heard, started

FACES = [
    nightmail.OutboxBroker,
    nightmail.OutboxRouter,
    nightmail.OutboxRoute,
    nightmail.OutboxRoutePublisher,
    nightmail.OutboxResponse,
    nightmail.OutboxSubscriber,
    nightmail.OutboxPublisher,
    nightmail.SyncPublisher,
    nightmail.TestOutboxBroker,
    nightmail.Cleaner,
    nightmail.Store,
    nightmail.FullStore,
]
MADE_BY_THE_BROKER = (nightmail.OutboxSubscriber, nightmail.OutboxPublisher)
"""Users have them and do not make them: what their `__init__` takes is not theirs."""


@cache
def our_names_in(module: str) -> set[str]:
    """What this module imports from us or defines, imports for type checkers included."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.ImportFrom) and node.module is not None and _is_ours(node.module):
            # What exists only for type checkers is an alias for types of others.
            there = import_module(node.module)
            names |= {each.asname or each.name for each in node.names if hasattr(there, each.name)}
    return names


def _is_ours(module: str) -> bool:
    return module.startswith("nightmail.") and module != "nightmail.broker._upstream"


def functions_of(face: type[Any]) -> Iterator[Any]:
    for kind in face.__mro__:
        for name, member in vars(kind).items() if kind.__module__.startswith("nightmail.") else ():
            if name.startswith("_") and (name != "__init__" or issubclass(face, MADE_BY_THE_BROKER)):
                continue
            function = member.fget if isinstance(member, property) else inspect.unwrap(member)
            if inspect.isfunction(function):
                yield function


def types_in(annotation: str, module: str) -> set[str]:
    """Our types in an annotation, except `Unpack[...]`: its options are named one by one."""
    tree = ast.parse("None" if annotation.startswith("Unpack[") else annotation)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & our_names_in(module)


def types_of(face: type[Any]) -> set[str]:
    return {
        name
        for function in functions_of(face)
        for annotation in function.__annotations__.values()
        for name in types_in(annotation, function.__module__)
    }


@pytest.mark.parametrize("face", FACES)
def test_every_type_in_its_signatures_is_importable(face: type[Any]) -> None:
    assert types_of(face) <= set(nightmail.__all__)


def test_the_signatures_are_read() -> None:
    found = set().union(*(types_of(face) for face in FACES))

    # One of each kind: returned, taken, for type checkers only in its module, of a base class, and of the contract.
    assert found >= {"PendingMessage", "Duration", "OutboxMessage", "DeadLetter", "QueueStats", "Claimed"}
    assert found >= {"QueueStatus", "Finding", "WhyReason", "WorkerHoldings"}
    assert found >= {"OnConflict", "OutboxSubscriber", "OutboxPublisher", "OutboxRoute", "Published"}


def test_every_type_of_an_option_is_importable() -> None:
    declared = {
        name
        for kind in vars(options).values()
        if inspect.isclass(kind) and kind.__module__ == options.__name__
        for annotation in inspect.get_annotations(kind).values()
        for name in types_in(_text(get_args(annotation)[0]), options.__name__)
    }
    assert declared >= {"Observer"}

    assert declared <= set(nightmail.__all__)
    assert {"Duration", "OnConflict", "RetryPolicy"} <= set(nightmail.__all__)


def _text(hint: Any) -> str:
    return str(getattr(hint, "__forward_arg__", "None"))


def our_modules_in(package: ModuleType) -> list[str]:
    return [each.name for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]


def test_every_exception_is_importable() -> None:
    ours = {
        kind
        for module in (errors, *map(import_module, our_modules_in(broker)))
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, BaseException) and not name.startswith("_")
        if kind.__module__ == module.__name__
    }
    assert nightmail.PublishUncertain in ours
    assert nightmail.PostponeMessage in ours

    assert {kind.__name__ for kind in ours if getattr(nightmail, kind.__name__, None) is not kind} == set()


def test_everything_it_promises_is_there() -> None:
    assert [name for name in nightmail.__all__ if not hasattr(nightmail, name)] == []


@pytest.mark.parametrize(
    "name",
    [
        "OutboxMessage",
        "OutboxSession",
        "SyncOutboxSession",
        "TestOutboxBroker",
        "PublishUncertain",
        "HandlerTimeout",
        "HandlerDied",
        "NotAwaited",
        "DeadLetter",
        "QueueStats",
        "QueueStatus",
        "Finding",
        "Severity",
        "diagnose",
    ],
)
def test_what_users_type_or_catch_is_at_the_root(name: str) -> None:
    assert name in nightmail.__all__
    assert hasattr(nightmail, name)


@pytest.mark.parametrize("message", [OutboxMessage, OutboxBatchMessage])
def test_the_message_of_a_handler_has_one_public_name(message: type[Any]) -> None:
    public = getattr(nightmail, message.__name__)

    assert public is getattr(nightmail.annotations, message.__name__)
    assert get_args(public)[0] is message


async def test_a_handler_asks_for_what_the_root_offers() -> None:
    broker = nightmail.OutboxBroker("memory://", logger=None)
    got: list[Any] = []

    async def handle(body: str, msg: Any) -> None:
        got.append(msg)

    handle.__annotations__["msg"] = nightmail.OutboxMessage
    broker.subscriber("q")(handle)
    async with nightmail.TestOutboxBroker(broker) as br:
        await br.publish("x", "q")
    assert [type(each) for each in got] == [OutboxMessage]


async def test_the_message_from_the_root_is_what_a_handler_gets(heard: Heard) -> None:
    broker = nightmail.OutboxBroker("memory://", logger=None, observer=heard)
    seen = []

    @broker.subscriber("q")
    async def handle(body: str, msg: nightmail.OutboxMessage) -> None:
        seen.append(msg.id)

    async with started(broker):
        await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.outcomes))

    assert seen == [1]
