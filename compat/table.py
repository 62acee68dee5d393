"""The text of docs/compatibility.md: only what a run has shown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

HEAD: Final = """\
# Versions it was tried on

<!-- Written by `make compat`. Do not edit. -->

`make compat` gets other versions of servers and of Python, and runs the conformance suite of the store on each (on
another Python the unit tests, and the suite on the memory and SQLite stores). A row is written by a run only, and names
the commit that had last changed the product then. It is *old* when the suite has other tests by now, or the code of the
store is another since that commit; after such a change, `make compat ARGS=--page` marks the rows. Postgres comes from
npm packages that carry its programs, other servers from other suites of Debian, unpacked and not installed.

| tried | version | passed | skipped | failed | at commit | |
|---|---|---|---|---|---|---|
"""


def page(results: Mapping[str, Mapping[str, Any]], today: Mapping[str, int], changed: Collection[str]) -> str:
    """All of it.

    `today`: how many tests there are now for each target, also for those that were never tried. `changed`: the targets
    whose store has changed since.
    """
    rows = [
        _row(name, result, old=name in changed or total(result) != today[name])
        for name, result in results.items()
        if "cannot" not in result
    ]
    missing = [f"- {name}: {result['cannot']}\n" for name, result in results.items() if "cannot" in result]
    broken = [
        f"- {name}: {', '.join(_names(result['broken']))}\n"
        for name, result in results.items()
        if result.get("broken")
    ]
    never = [f"- {name}\n" for name in today if name not in results]
    return (
        HEAD
        + "".join(rows)
        + ("\nWhat failed:\n\n" + "".join(broken) if broken else "")
        + (
            "\nCould not be had, or not started, where this was written:\n\n" + "".join(missing)
            if missing
            else ""
        )
        + ("\nNot tried:\n\n" + "".join(never) if never else "")
    )


def total(result: Mapping[str, Any]) -> int:
    """How many tests there were."""
    return sum(result.get(name, 0) for name in ("passed", "skipped", "failed"))


def _names(broken: Iterable[str]) -> dict[str, None]:
    """These tests, without what they were given, in order."""
    return dict.fromkeys(f"`{test.rpartition('::')[2].partition('[')[0]}`" for test in broken)


def _row(name: str, result: Mapping[str, Any], *, old: bool) -> str:
    counts = " | ".join(str(result.get(each, 0)) for each in ("passed", "skipped", "failed"))
    commit = result.get("commit") or "not noted"
    return f"| {name} | {result.get('version', '')} | {counts} | {commit} | {'old' if old else ''} |\n"
