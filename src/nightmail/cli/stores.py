"""Which store a command is about."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qs, urlsplit

from nightmail.store import FullStore

URL_VARIABLE: Final = "NIGHTMAIL_URL"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The arguments that name the store."""
    command.add_argument("url", nargs="?", help=f"the store's URL (default: the variable {URL_VARIABLE})")
    command.add_argument(
        "--tables", help="the prefix of the tables' names, or schema.prefix (default: nightmail)"
    )


def url_of(given: argparse.Namespace) -> str:
    """The URL from the arguments, or from the environment."""
    url: str | None = given.url or os.environ.get(URL_VARIABLE)
    if not url:
        raise ValueError(f"which store? Give its URL, or set {URL_VARIABLE}")
    if given.url and _has_password(given.url):
        raise ValueError(
            f"other users can read the arguments of a command: put a URL with a password in {URL_VARIABLE}"
        )
    return url


def _has_password(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.password) or any(
        "pass" in name.lower() or name.lower() == "pwd" for name in parse_qs(parts.query)
    )


@asynccontextmanager
async def opened(store: FullStore) -> AsyncIterator[None]:
    """The store, open for as long as the block lasts."""
    await store.open()
    try:
        yield
    finally:
        await store.close()
