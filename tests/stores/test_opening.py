"""From a URL to a store."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest

from nightmail.errors import DriverMissing
from nightmail.stores import open_store, public_url


def test_a_missing_driver_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_asyncpg(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "asyncpg":
            raise ModuleNotFoundError(f"No module named {name!r}", name="asyncpg")
        return real(name, *arguments, **options)

    for module in [name for name in sys.modules if name.startswith("nightmail.stores.postgres")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without_asyncpg)

    with pytest.raises(DriverMissing, match=r"pip install 'nightmail\[postgres\]'"):
        open_store("postgresql://localhost/shop")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://shop:hunter2@db.example:5433/shop?password=x", "postgresql://db.example:5433/shop"),
        ("sqlite:///nightmail.db", "sqlite:///nightmail.db"),
        ("memory://", "memory://"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert public_url(url, open_store("memory://")) == shown
