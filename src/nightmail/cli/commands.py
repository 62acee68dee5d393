"""All commands: one module for each group of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from nightmail._version import __version__
from nightmail.cli import (
    benching,
    dead,
    doctor,
    messages,
    moving,
    pausing,
    publishing,
    schema,
    status,
    tail,
    timers,
    why,
    workers,
)
from nightmail.cli.exit_codes import DONE, UNCONFIRMED, USAGE
from nightmail.describing import one_line

app = typer.Typer(
    name="nightmail",
    help="Durable messages, delivered when they are due, from the database you already have.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
LOOK = "Look"
CHANGE = "Change"
SET_UP = "Set up"

app.command("status", rich_help_panel=LOOK)(status.status)
app.command("list", rich_help_panel=LOOK)(messages.list_waiting)
app.command("show", rich_help_panel=LOOK)(messages.show)
app.command("tail", rich_help_panel=LOOK)(tail.tail)
app.command("why", rich_help_panel=LOOK)(why.why)
app.command("workers", rich_help_panel=LOOK)(workers.workers)
app.command("pauses", rich_help_panel=LOOK)(pausing.pauses)
app.command("doctor", rich_help_panel=LOOK)(doctor.doctor)
app.command("publish", rich_help_panel=CHANGE)(publishing.publish)
app.command("cancel", rich_help_panel=CHANGE)(timers.cancel)
app.command("reschedule", rich_help_panel=CHANGE)(timers.reschedule)
app.command("pause", rich_help_panel=CHANGE)(pausing.pause)
app.command("resume", rich_help_panel=CHANGE)(pausing.resume)
app.command("stop", rich_help_panel=CHANGE)(workers.stop)
app.add_typer(dead.app, name="dead", rich_help_panel=CHANGE)
app.command("migrate", rich_help_panel=SET_UP)(schema.migrate)
app.command("check", rich_help_panel=SET_UP)(schema.check)
app.command("bench", rich_help_panel=SET_UP)(benching.bench)
app.command("move-outbox", rich_help_panel=SET_UP)(moving.move_outbox)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"nightmail {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Durable messages, delivered when they are due, from the database you already have."""


def run(arguments: Sequence[str] | None) -> int:
    """Run one command; the exit code."""
    try:
        code: Any = app(
            args=None if arguments is None else list(arguments), prog_name="nightmail", standalone_mode=False
        )
    except typer.Abort:
        print("nightmail: not confirmed; nothing was changed", file=sys.stderr)
        return UNCONFIRMED
    except Exception as error:
        # What the parser refuses; its class is Typer's own copy of Click's, or Click's, as Typer's version has it.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if said := one_line(message()):
            print(f"nightmail: {said} (`{_path(error)} --help` shows what there is)", file=sys.stderr)
        return USAGE
    return code if isinstance(code, int) else DONE


def _path(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return "nightmail" if context is None else str(context.command_path)
