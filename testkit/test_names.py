"""Tests by the names that pytest gives them: documents and mutants refer to tests, and must not outlive them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def is_test(name: str) -> bool:
    """Whether there is a test `tests/unit/test_leases.py::test_...`, or such a file. Cases are not looked at."""
    file, *path = name.split("::")
    if not (ROOT / file).is_file():
        return False
    # Imported, not read: most tests of a store are inherited.
    found: object = import_module(file.removesuffix(".py").replace("/", "."))
    for part in path:
        found = getattr(found, part.partition("[")[0], None)
    return found is not None and (not path or callable(found))
