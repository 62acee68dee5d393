"""What commands print: tables on a terminal, lines with tabs in a pipe, JSON when asked for."""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nightmail.cli.texts import safe
from nightmail.json_log import JSONFormatter
from nightmail.wording import moment

HIDDEN: Final = frozenset({"body", "encoded_headers"})
"""Fields of messages that are shown only when asked for."""
_NUMBERS: Final = frozenset({"id", "message_id", "newest"})
"""Ids, as texts in JSON: those of Redis are larger than the numbers that many readers of JSON can keep."""


class Output:
    """Where a command's answer goes. Everything that came from a store is made harmless here."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.on_terminal = sys.stdout.isatty() and not as_json
        # No markup, no emoji codes, no highlighting: a message's text is only text.
        self.console = Console(
            file=sys.stdout, markup=False, emoji=False, highlight=False, no_color=not self.on_terminal
        )

    def say(self, line: str) -> None:
        """A line of the answer."""
        print(line, flush=True)

    def note(self, line: str) -> None:
        """A line about the answer: not part of it."""
        if not self.as_json:
            print(line, file=sys.stderr, flush=True)

    def warn(self, line: str) -> None:
        """A line about what is in the way of a command that goes on; as JSON for one who reads JSON."""
        if self.as_json:
            record = logging.LogRecord("nightmail.cli", logging.WARNING, __file__, 0, line, None, None)
            print(JSONFormatter().format(record), file=sys.stderr, flush=True)
        else:
            print(f"{moment(datetime.now(UTC))} {line}", file=sys.stderr, flush=True)

    def json(self, answer: Any, *, compact: bool = False) -> None:
        """The answer as JSON. `compact`: in one line, for streams."""
        print(json.dumps(plain(answer), indent=None if compact else 2), flush=True)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: frozenset[str] = frozenset()
    ) -> None:
        """Rows under headings; `right`: columns of numbers."""
        if self.on_terminal:
            self.console.print(self.make_table(columns, rows, right=right))
            return
        print("\t".join(columns))
        for row in rows:
            print("\t".join(safe(cell, 500) for cell in row))
        sys.stdout.flush()

    def make_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: frozenset[str] = frozenset()
    ) -> Table:
        """The same as a table to be drawn."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(column, justify="right" if column in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(safe(cell, 500)) for cell in row))
        return table

    def facts(self, facts: Mapping[str, object]) -> None:
        """Names and values, one in each line."""
        width = max(map(len, facts)) + 2
        for name, value in facts.items():
            label = f"{name + ':':<{width}}" if self.on_terminal else f"{name}\t"
            self.say(f"{label}{safe(value, 100_000)}")


def plain(value: Any) -> Any:
    """A value as JSON has it: times in UTC, durations in seconds, ids as texts, what is hidden left out."""
    if is_dataclass(value) and not isinstance(value, type):
        shown = {
            each.name: _plain_field(each.name, getattr(value, each.name))
            for each in fields(value)
            if each.name not in HIDDEN
        }
        return shown if (body := getattr(value, "body", None)) is None else {**shown, "body_bytes": len(body)}
    if isinstance(value, Mapping):
        return {str(name): _plain_field(str(name), each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value


def _plain_field(name: str, value: Any) -> Any:
    return str(value) if name in _NUMBERS and isinstance(value, int) else plain(value)


def with_content(message: Any) -> dict[str, Any]:
    """A message or dead letter as JSON, with body and headers."""
    return {**plain(message), "headers": headers_of(message), **body_fields(message.body)}


def headers_of(message: Any) -> Any:
    """Its headers, or their text if other software wrote something else."""
    try:
        return message.headers
    except ValueError:
        return message.encoded_headers


def body_fields(body: bytes) -> dict[str, str]:
    """A body in JSON: as text where it is text."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def shown_body(body: bytes) -> str:
    """A body for a person: as text where it is text, else in hexadecimal."""
    try:
        return safe(body.decode(), 100_000)
    except UnicodeDecodeError:
        return f"{len(body):,} bytes, in hexadecimal: {body.hex()}"
