"""What the product's source may not contain, whatever it is for."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nightmail

PRODUCT = Path(nightmail.__file__).parent
RUNS_CODE = {"cloudpickle", "code", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve", "yaml"}
"""Modules that run what they read."""
CALLS = {"eval", "exec", "compile", "__import__"}
LISTENS = {"http.server", "socketserver", "wsgiref", "xmlrpc", "aiohttp.web", "uvicorn", "websockets"}
SHELLS = {"subprocess", "pty", "pexpect"}
PIPE = "engine/processes.py"
"""Hands handlers and their arguments, which are values of this program, to children of this program."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the product: what it imports, and what it calls."""

    imports: frozenset[str]
    calls: frozenset[str]


@cache
def sources() -> dict[str, Source]:
    """All of them, read once."""
    return {
        file.relative_to(PRODUCT).as_posix(): _source(ast.parse(file.read_text("utf-8")))
        for file in sorted(PRODUCT.rglob("*.py"))
    }


def _source(tree: ast.Module) -> Source:
    nodes = list(ast.walk(tree))
    return Source(
        frozenset(name for node in nodes for name in _imported(node)),
        frozenset(ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)),
    )


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importing(modules: set[str]) -> set[str]:
    """The files that import one of these, or a part of one."""
    return {
        name
        for name, source in sources().items()
        for module in source.imports
        if any(module == each or module.startswith(f"{each}.") for each in modules)
    }


def calling(wanted: Callable[[str], bool]) -> set[str]:
    """The files that call such a thing."""
    return {name for name, source in sources().items() if any(map(wanted, source.calls))}


def test_nothing_reads_a_format_that_runs_code_except_the_pipe_to_our_own_children() -> None:
    assert importing(RUNS_CODE) == {PIPE}


def test_nothing_evaluates_text() -> None:
    assert calling(CALLS.__contains__) == set()


def test_nothing_starts_another_program() -> None:
    assert importing(SHELLS) == set()
    assert calling({"os.system", "os.popen", "os.execv"}.__contains__) == set()


def test_nothing_listens_on_a_port() -> None:
    """Once something does, such as a dashboard, S9 to S14 of SECURITY.md apply, and need tests."""
    assert importing(LISTENS) == set()
    assert calling(lambda call: "start_server" in call) == set()


def test_a_module_is_imported_by_a_name_of_ours_or_of_the_command_line_only() -> None:
    """Never by a name that a message carries: a handler is found in the broker that it was registered with."""
    assert calling(lambda call: call.endswith("import_module")) == {
        "__init__.py",  # Our own parts that need FastStream, by a fixed table.
        "broker/def_handlers.py",  # The handler's own module, for its child process.
        "broker/relay.py",  # FastStream's parts for the system of the publisher.
        "broker/return_values.py",  # The same.
        "cli/which_store.py",  # `--app module:broker`, typed by who runs the command.
    }


def test_the_package_is_text_and_nothing_runs_by_being_installed() -> None:
    files = [file for file in PRODUCT.rglob("*") if file.is_file() and "__pycache__" not in file.parts]

    assert {file.suffix for file in files} <= {".py", ".sql", ".lua", ".md", ".typed"}
    for file in files:
        file.read_text("utf-8")
