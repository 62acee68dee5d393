"""`nightmail`: what an operator does to a store."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from nightmail._version import __version__
from nightmail.cli import moving, schema, stores
from nightmail.cli.stores import URL_VARIABLE
from nightmail.errors import NightmailError
from nightmail.stores import open_store

__all__ = ["URL_VARIABLE", "main"]

INTERRUPTED: Final = 130
"""The exit code of a command that was ended with Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    given = _parser().parse_args(arguments)
    try:
        store = open_store(stores.url_of(given), tables=given.tables)
        code: int = asyncio.run(given.command(store, given))
    except Exception as error:
        if given.debug:
            raise
        print(f"nightmail: {_said(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "nightmail: interrupted; what is done stays done, and the same command goes on", file=sys.stderr
        )
        return INTERRUPTED
    return code


def _said(error: Exception) -> str:
    """What went wrong, in one line. Only our own errors need no type name."""
    text = " ".join(str(error).split())
    if isinstance(error, NightmailError | ValueError):
        return text
    return f"{type(error).__name__}: {text} (--debug shows where)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nightmail",
        description="Durable messages, delivered when they are due, from the database you already have.",
    )
    parser.add_argument("--version", action="version", version=f"nightmail {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, run, add_arguments in (
        ("migrate", schema.migrate, schema.add_migrate_arguments),
        ("check", schema.check, None),
        ("move-from-faststream-outbox", moving.move_from_faststream_outbox, moving.add_arguments),
    ):
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        stores.add_arguments(command)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if add_arguments is not None:
            add_arguments(command)
        command.set_defaults(command=run)
    return parser
