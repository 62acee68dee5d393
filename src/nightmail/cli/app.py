"""`nightmail`: what an operator does to a store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

_EXTRA: Final = ("typer", "rich")
"""What the command line needs besides the library: the extra `cli`."""
_USAGE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    try:
        from nightmail.cli.commands import run
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        print(
            "nightmail: the command line is not installed. Run: pip install 'nightmail[cli]'", file=sys.stderr
        )
        return _USAGE
    return run(arguments)
