"""`python -m compat`: run the conformance suite on every version that can be had, and write docs/compatibility.md."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from compat.changed import changed
from compat.collected import EVERY_TEST, collected
from compat.obtain import CannotBeHad, packages, programs, python
from compat.table import page
from compat.targets import TARGETS, Target
from faults.commits import last_change

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = Path(__file__).parent / "results.json"
PAGE: Final = ROOT / "docs" / "compatibility.md"


def main() -> int:
    """1 if a version failed."""
    parser = argparse.ArgumentParser(prog="python -m compat", description=__doc__)
    parser.add_argument("--only", default="", help="only versions whose name contains this")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--page", action="store_true", help="try nothing, only write the page again")
    parser.add_argument("pytest", nargs="*", help="more arguments for pytest, after --")
    options = parser.parse_args()
    chosen = [target for target in TARGETS if options.only.lower() in target.name.lower()]
    if options.list:
        print("\n".join(target.name for target in chosen))
        return 0
    failed = 0
    for target in () if options.page else chosen:
        print(f"{target.name}: ", end="", flush=True)
        result = _try(target, options.pytest)
        print(_said(result), flush=True)
        failed += bool(result.get("failed"))
        _keep(target.name, result)
    results = load()
    PAGE.write_text(page(results, collected(TARGETS), changed(TARGETS, results)))
    return min(failed, 1)


def _try(target: Target, arguments: list[str]) -> dict[str, Any]:
    """What came of one version."""
    try:
        path, interpreter = programs(target.source), python(target.source)
        besides = packages(target.packages)
    except CannotBeHad as error:
        return {"cannot": str(error)}
    search = os.pathsep.join([*map(str, path), os.environ["PATH"]])
    version = _version(str(interpreter) if interpreter else target.program, search)
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        begun = time.monotonic()
        done = subprocess.run(
            [
                str(interpreter or sys.executable),
                *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", f"--junit-xml={report}"),
                EVERY_TEST,
                *target.tests,
                *arguments,
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "CI": "1",
                "PATH": search,
                # First what is in this tree: the environment may have been made for another.
                "PYTHONPATH": os.pathsep.join(map(str, [ROOT / "src", *besides])),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            return {"failed": 1, "passed": 0, "said": done.stdout[-2000:] + done.stderr[-2000:]}
        seconds = round(time.monotonic() - begun)
        return {"version": version, "commit": last_change(), **_counts(report), "seconds": seconds}


def _version(program: str, search: str) -> str:
    """What a program says when it is asked."""
    found = shutil.which(program, path=search)
    if found is None:
        return ""
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    numbers = re.search(r"\d+(\.\d+)+", told)
    return numbers[0] if numbers else ""


def _counts(report: Path) -> dict[str, Any]:
    suites = ElementTree.parse(report).getroot()  # noqa: S314 - written by pytest, just now
    [suite] = suites.findall("testsuite")
    count = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    broken = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.findall("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    failed = count["failures"] + count["errors"]
    return {
        "passed": count["tests"] - failed - count["skipped"],
        "skipped": count["skipped"],
        "failed": failed,
        "broken": broken,
    }


def _said(result: dict[str, Any]) -> str:
    if "cannot" in result:
        return f"cannot be had: {result['cannot']}"
    return (
        f"{result['passed']} passed, {result.get('skipped', 0)} skipped, {result['failed']} failed"
        + "".join(f"\n    {name}" for name in result.get("broken", [])[:10])
    )


def load() -> dict[str, dict[str, Any]]:
    """The last result of each target that was tried."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {target.name: kept[target.name] for target in TARGETS if target.name in kept}


def _keep(name: str, result: dict[str, Any]) -> None:
    """Among the results of those that are not tried this time."""
    kept = load() | {name: result}
    known = {target.name: kept[target.name] for target in TARGETS if target.name in kept}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
