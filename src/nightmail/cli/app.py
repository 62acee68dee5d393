"""`nightmail`: what an operator does to a store."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from nightmail.cli import schema
from nightmail.errors import NightmailError
from nightmail.stores import open_store

URL_VARIABLE: Final = "NIGHTMAIL_URL"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    given = _parser().parse_args(arguments)
    try:
        store = open_store(_url(given.url), tables=given.tables)
        asyncio.run(given.command(store))
    except (NightmailError, ValueError) as error:
        print(f"nightmail: {error}", file=sys.stderr)
        return 1
    return 0


def _url(argument: str | None) -> str:
    url = argument or os.environ.get(URL_VARIABLE)
    if not url:
        raise ValueError(f"which store? Give its URL, or set {URL_VARIABLE}")
    if argument and urlsplit(argument).password:
        raise ValueError(
            f"other users can read the arguments of a command: put a URL with a password in {URL_VARIABLE}"
        )
    return url


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nightmail",
        description="Durable messages, delivered when they are due, from the database you already have.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, run in (("migrate", schema.migrate), ("check", schema.check)):
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.add_argument("url", nargs="?", help=f"the store's URL (default: the variable {URL_VARIABLE})")
        command.add_argument(
            "--tables", help="the prefix of the tables' names, or schema.prefix (default: nightmail)"
        )
        command.set_defaults(command=run)
    return parser
