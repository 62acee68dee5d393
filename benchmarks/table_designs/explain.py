"""What the server does for a statement: the plan, and what running it touched."""

import json
import secrets
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from benchmarks.table_designs.load import BEGINNING, END, Connection

_SPECIAL = {BEGINNING[0]: "-infinity", END[0]: "infinity"}


@dataclass(frozen=True, slots=True)
class Node:
    """A step of a plan: what it does, through which index, and how often."""

    kind: str
    index: str
    loops: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that was run."""

    nodes: tuple[Node, ...]
    milliseconds: float
    buffers: int


class Prepared:
    """A statement prepared by name, as drivers do: its plan is made at the first run and kept."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    async def run(self, *arguments: Any) -> Plan:
        """Run it, and undo what it wrote."""
        values = ", ".join(_literal(argument) for argument in arguments)
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            text = await self._connection.fetchval(
                f"explain (analyze, buffers, timing off, format json) execute {self._name}({values})"
            )
        finally:
            await transaction.rollback()
        answer = json.loads(text)[0]
        root = answer["Plan"]
        return Plan(
            nodes=tuple(_nodes(root)),
            milliseconds=answer["Execution Time"],
            buffers=root["Shared Hit Blocks"] + root["Shared Read Blocks"],
        )


@asynccontextmanager
async def prepared(connection: Connection, statement: str) -> AsyncIterator[Prepared]:
    """The statement, for as long as the block lasts."""
    name = "explained_" + secrets.token_hex(4)
    await connection.execute(f"prepare {name} as {statement}")
    try:
        yield Prepared(connection, name)
    finally:
        await connection.execute(f"deallocate {name}")


async def explain(connection: Connection, statement: str, *arguments: Any) -> Plan:
    """Plan the statement, run it, and undo what it wrote."""
    async with prepared(connection, statement) as explained:
        return await explained.run(*arguments)


def _nodes(node: dict[str, Any]) -> Iterator[Node]:
    yield Node(node["Node Type"], node.get("Index Name", ""), node["Actual Loops"])
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return "'{" + ",".join(_text(item) for item in value) + "}'"
    return f"'{_text(value)}'"


def _text(value: Any) -> str:
    match value:
        case datetime():
            return f'"{_SPECIAL.get(value, value.isoformat())}"'
        case timedelta():
            return f"{value.total_seconds()} seconds"
        case int() | str() | uuid.UUID():
            return str(value)
    raise TypeError(f"cannot write {value!r} as a literal")
