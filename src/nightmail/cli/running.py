"""How a command runs: the options that all have, the store, and how errors end it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, Concatenate, Final, ParamSpec

import typer

from nightmail.cli import audit
from nightmail.cli.exit_codes import INTERRUPTED, code_of, line_of
from nightmail.cli.output import Output
from nightmail.cli.which_store import URL_VARIABLE, Chosen, choose
from nightmail.describing import one_line
from nightmail.json_log import JSONFormatter

P = ParamSpec("P")

_STORE: Final = "The store"
_LINE: Final = 2000
"""The longest line of a traceback."""
App = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:BROKER", help="The store of this application's broker.", rich_help_panel=_STORE
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help=f"The store at this URL, without a password. Without --app and --url: {URL_VARIABLE}, nightmail.toml, "
        "pyproject.toml, a prompt.",
        rich_help_panel=_STORE,
    ),
]
UrlArgument = Annotated[str | None, typer.Argument(metavar="[URL]", help="The same as --url.")]
Tables = Annotated[
    str | None,
    typer.Option(
        metavar="PREFIX",
        help="The prefix of the tables' names, or schema.prefix. Default: nightmail.",
        rich_help_panel=_STORE,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error, too.", rich_help_panel=_STORE)
]


@dataclass(frozen=True, slots=True)
class Session:
    """What a command works with."""

    chosen: Chosen
    out: Output


Command = Callable[Concatenate[Session, P], Coroutine[Any, Any, int | None]]


def on_store(
    *, json: bool = False, positional: bool = False, changes: bool = False
) -> Callable[[Command[P]], Callable[..., None]]:
    """A command on a store: its own parameters, and those that name the store.

    `json`: it can print JSON. `positional`: the URL may also be given without `--url`. `changes`: what it
    does is noted, see `audit`.
    """

    def wrap(command: Command[P]) -> Callable[..., None]:
        @wraps(command)
        def run(
            *,
            app: str | None = None,
            url: str | None = None,
            url_argument: str | None = None,
            tables: str | None = None,
            debug: bool = False,
            as_json: bool = False,
            **own: Any,
        ) -> None:
            # Before anything is done, so that nothing is done that could not be noted.
            noting = audit.kept if changes else nullcontext
            _run(
                command,
                own,
                noting,
                app=app,
                url=url_argument or url,
                tables=tables,
                debug=debug,
                as_json=as_json,
            )

        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        shared: dict[str, tuple[Any, Any]] = {
            "app": (App, None),
            "url": (Url, None),
            "tables": (Tables, None),
        }
        if json:
            shared["as_json"] = (Json, False)
        shared["debug"] = (Debug, False)
        if positional:
            shared["url_argument"] = (UrlArgument, None)
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # Typer reads the options from it.
            [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
            + [
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
                )
                for name, (annotation, default) in shared.items()
            ]
        )
        run.__annotations__ = {
            **{each.name: each.annotation for each in own},
            **{name: annotation for name, (annotation, _) in shared.items()},
        }
        return run

    return wrap


def _run(
    command: Callable[..., Coroutine[Any, Any, int | None]],
    own: dict[str, Any],
    noting: Callable[[], AbstractContextManager[None]],
    *,
    app: str | None,
    url: str | None,
    tables: str | None,
    debug: bool,
    as_json: bool,
) -> None:
    where = "no store yet"
    try:
        chosen = choose(app=app, url=url, tables=tables)
        where = chosen.where
        with _terminated_like_interrupted(), _library_log(as_json=as_json), noting():
            code = asyncio.run(command(Session(chosen, Output(as_json=as_json)), **own))
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        # The reader has seen enough, as in `nightmail list | head`.
        sys.stderr.close()
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        print(
            "nightmail: interrupted; what is done stays done, and the same command goes on", file=sys.stderr
        )
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:  # noqa: BLE001 - it ends in a line and a code, whatever it is
        if debug:
            for line in traceback.format_exc().splitlines():
                print(one_line(line, _LINE), file=sys.stderr)
        print(f"nightmail: {line_of(error, where, traced=debug)}", file=sys.stderr)
        raise typer.Exit(code_of(error)) from None
    if code:
        raise typer.Exit(code)


@contextmanager
def _library_log(*, as_json: bool) -> Iterator[None]:
    """Show what the library logs, beside the answer; unless the application of `--app` has configured `logging`."""
    library = logging.getLogger("nightmail")
    if library.hasHandlers():
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if as_json else logging.Formatter("nightmail: %(message)s"))
    handler.addFilter(audit.is_other)
    library.addHandler(handler)
    try:
        yield
    finally:
        library.removeHandler(handler)


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: with what it has done said, and its terminal restored."""

    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        yield  # Not the main thread, as in some tests: no signal arrives here.
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
