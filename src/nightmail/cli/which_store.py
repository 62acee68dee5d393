"""Which store a command is about: an application's, or the one at a URL."""

from __future__ import annotations

import os
import stat
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import typer

from nightmail.cli.exit_codes import Refusal
from nightmail.describing import one_line
from nightmail.errors import NotAllowed, SchemaDrift
from nightmail.store import FullStore
from nightmail.stores import open_store, public_url

URL_VARIABLE: Final = "NIGHTMAIL_URL"
OWN_FILE: Final = "nightmail.toml"
PROJECT_FILE: Final = "pyproject.toml"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A URL, and where it was found."""

    url: str
    tables: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """The store of a command."""

    store: FullStore
    where: str
    """The store as errors and headings name it: without user and password."""
    address: StoreAddress | None
    """`None` for the store of an application."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[FullStore]:
        """The store, open for as long as the block lasts."""
        await self.store.open()
        try:
            yield self.store
        finally:
            await self.store.close()

    @asynccontextmanager
    async def ready(self, *, adopt: bool = False) -> AsyncIterator[FullStore]:
        """The same, where there are tables of this version.

        They need not be exactly as they should: one who looks into a queue at night must not be kept out by a dropped
        index, nor by an account that may only look. `adopt` is for commands that write: see `Store.check`.
        """
        async with self.opened() as store:
            with suppress(SchemaDrift, NotAllowed):
                await store.check(adopt=adopt)
            yield store


def choose(*, app: str | None, url: str | None, tables: str | None) -> Chosen:
    """The store that was asked for: the application's, or that of the URL given or found."""
    if app is not None and url is not None:
        raise Refusal("give --app or a URL, not both")
    if app is not None:
        if tables is not None:
            raise Refusal("--tables goes with a URL: a broker knows its tables")
        store = _of_application(app)
        return Chosen(_usable(store), f"{store.capabilities.name}, from --app {one_line(app)}", None)
    address = find_address(url, tables)
    store = open_store(address.url, tables=address.tables)
    where = f"{one_line(public_url(address.url, store))}, from {address.origin}"
    return Chosen(_usable(store), where, address)


def find_address(url: str | None, tables: str | None) -> StoreAddress:
    """The URL from the argument, the environment, a file of this directory, or a prompt: the first that has one."""
    if url is not None:
        if has_password(url):
            raise Refusal(
                "other users can read the arguments of a command: put a URL with a password into the variable "
                f"{URL_VARIABLE}, or into {OWN_FILE} (chmod 600)"
            )
        return StoreAddress(url, tables, "the command line")
    if given := os.environ.get(URL_VARIABLE):
        return StoreAddress(given, tables, URL_VARIABLE)
    for file, table in ((Path(OWN_FILE), ()), (Path(PROJECT_FILE), ("tool", "nightmail"))):
        settings = _settings(file, table)
        if found := settings.get("url"):
            if has_password(found):
                _check_kept_private(file)
            return StoreAddress(found, tables or settings.get("tables"), file.name)
    if sys.stdin.isatty() and sys.stderr.isatty():
        # Hidden: it may have a password, and others may see the screen.
        typed = str(typer.prompt("URL of the store (not shown)", hide_input=True, err=True)).strip()
        return StoreAddress(typed, tables, "the prompt")
    raise Refusal(
        f'which store? Set {URL_VARIABLE}, put url = "..." into {OWN_FILE} or [tool.nightmail] of {PROJECT_FILE}, or '
        "give --app module:broker or --url"
    )


def has_password(url: str) -> bool:
    """Whether a password stands in this URL, before the host or among the options."""
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0].lower() == "sqlite":
        return False  # A file: its name may have any characters in it.
    # By hand: an unescaped character in a password would hide it from a parser.
    user = rest.rpartition("@")[0]
    options = parse_qs(rest.partition("?")[2], keep_blank_values=True)
    return ":" in user or any(_names_a_password(name.lower()) for name in options)


def _names_a_password(option: str) -> bool:
    # `passfile` of Postgres is the name of a file.
    return option == "pwd" or ("pass" in option and option != "passfile")


def _settings(file: Path, table: tuple[str, ...]) -> dict[str, str]:
    try:
        with file.open("rb") as opened:
            found: dict[str, Any] = tomllib.load(opened)
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise Refusal(f"{file} cannot be read: it is not UTF-8") from error
    except (OSError, tomllib.TOMLDecodeError) as error:
        # The text of a syntax error has no line of the file in it.
        raise Refusal(f"{file} cannot be read: {error}") from error
    for name in table:
        below = found.get(name, {})
        if not isinstance(below, dict):
            raise Refusal(f"{file}: {name} must be a table")
        found = below
    if not all(isinstance(value, str) for value in found.values()):
        raise Refusal(f"{file}: url and tables must be texts")
    if unknown := sorted(set(found) - {"url", "tables"}):
        raise Refusal(f"{file} has an unknown setting: {one_line(unknown[0])}. There are url and tables")
    return found


def _check_kept_private(file: Path) -> None:
    if file.name != OWN_FILE:
        raise Refusal(
            f"{file} is shared with its project: put a URL with a password into the variable {URL_VARIABLE}, or into "
            f"{OWN_FILE} (chmod 600)"
        )
    if os.name == "posix" and file.stat().st_mode & _OTHERS:
        raise Refusal(f"{file} has a password in it, and other users can read it: chmod 600 {file}")


def _of_application(app: str) -> FullStore:
    """The store of `module:broker`, or of an application that has a broker."""
    module, _, attribute = app.partition(":")
    if not module or not attribute:
        raise Refusal(f"--app is module:broker, such as shop:broker, not {one_line(app)}")
    # As `faststream run` does: the application of this directory.
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise Refusal(
            f"there is no module {one_line(module)} here: run this where the application is"
        ) from error
    finally:
        sys.path.pop(0)
    for name in attribute.split("."):
        found = getattr(found, name, None)
    broker = getattr(found, "broker", found)
    store = getattr(broker, "store", None)
    if not isinstance(store, FullStore):
        raise Refusal(f"{one_line(app)} is no OutboxBroker, and has none")
    return store


def _usable(store: FullStore) -> FullStore:
    if store.capabilities.name == "memory":
        raise Refusal(
            "a memory store lives in the process that made it: there is nothing here to look at from outside"
        )
    return store
