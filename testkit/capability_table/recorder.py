"""Runs the suite on the stores, and records how its tests ended."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import cast

import pytest

from nightmail.store import Capabilities, Store
from testkit.capability_table.endings import SUITE, Ending, ending, together


class Recorder:
    """A pytest plugin: runs the tests of the suite and no others."""

    def __init__(self) -> None:
        self._stores: dict[type, Capabilities] = {}
        self._endings: dict[type, dict[str, Ending]] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Only what the suite itself defines."""
        config.hook.pytest_deselected(items=[item for item in items if not _is_of_the_suite(item)])
        items[:] = filter(_is_of_the_suite, items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Function
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Record how it ended, and what the store under test declares."""
        report = yield
        if "store" in item.funcargs:
            self._stores[item.cls] = cast("Store", item.funcargs["store"]).capabilities
        if (ended := ending(report)) is not None:
            tests = self._endings.setdefault(item.cls, {})
            tests[item.originalname] = together(tests.get(item.originalname), ended)
        return report

    def by_store(self) -> dict[str, tuple[Capabilities, dict[str, Ending]]]:
        """For each store that was run, by its name: what it declared once open, and how the tests ended."""
        found: dict[str, tuple[Capabilities, dict[str, Ending]]] = {}
        for cls, tests in self._endings.items():
            if (opened := self._stores.get(cls)) is None:
                sys.exit(f"{cls.__name__}: not one of its tests could open the store")
            _, merged = found.setdefault(opened.name, (opened, {}))
            for test, ended in tests.items():
                merged[test] = together(merged.get(test), ended)
        return found


def _is_of_the_suite(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and item.function.__module__.startswith(SUITE)
