"""The text of docs/compatibility.md: only what a run has shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

HEAD: Final = """\
# Versions it was tried on

<!-- Written by `make compat`. Do not edit. -->

`make compat` gets other versions of servers and of Python, and runs the conformance suite of the store on each (on
another Python the unit tests, and the suite on the memory and SQLite stores). A row is written by a run only. Postgres
comes from npm packages that carry its programs, other servers from other suites of Debian, unpacked and not installed.

| tried | version | passed | skipped | failed |
|---|---|---|---|---|
"""


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """All of it."""
    rows = [_row(name, result) for name, result in results.items() if "cannot" not in result]
    missing = [f"- {name}: {result['cannot']}\n" for name, result in results.items() if "cannot" in result]
    text = HEAD + "".join(rows)
    return text + ("\nCould not be had where this was written:\n\n" + "".join(missing) if missing else "")


def _row(name: str, result: Mapping[str, Any]) -> str:
    version = result.get("version", "")
    return f"| {name} | {version} | {result['passed']} | {result.get('skipped', 0)} | {result['failed']} |\n"
