"""Who gives a command: what a store notes about it."""

from __future__ import annotations

from typing import Annotated

import typer

from nightmail.operations.operator import named

__all__ = ["By", "named"]

By = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who says so. Default: your user name and this machine's.")
]
