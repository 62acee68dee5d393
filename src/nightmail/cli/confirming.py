"""Asks before something is lost."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from nightmail.cli.exit_codes import UNCONFIRMED, Refusal


def confirm(what: str, *, yes: bool) -> None:
    """Return if the person at the terminal agrees, or `--yes` was given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refusal(f"this would {what}, and no one is here to ask: add --yes", UNCONFIRMED)
    with _interruptible():
        agreed = typer.confirm(f"This will {what}. Go on?", err=True)
    if not agreed:
        raise Refusal("not confirmed; nothing was changed", UNCONFIRMED)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the question at once. asyncio would only note it, and go on waiting for an answer."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
