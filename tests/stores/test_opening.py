"""From a URL to a store."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest

from nightmail import stores
from nightmail.errors import DriverMissing
from nightmail.stores import open_store, public_url


@pytest.mark.parametrize(
    ("driver", "extra", "url"),
    [
        ("asyncpg", "postgres", "postgresql://localhost/shop"),
        ("asyncmy", "mysql", "mysql://localhost/shop"),
        ("asyncmy", "mysql", "mariadb://localhost/shop"),
        ("redis", "redis", "redis://localhost"),
        ("redis", "redis", "rediss://localhost"),
        ("redis", "redis", "redis+cluster://localhost"),
    ],
)
def test_a_missing_driver_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, driver: str, extra: str, url: str
) -> None:
    real = builtins.__import__

    def without_driver(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == driver:
            raise ModuleNotFoundError(f"No module named {name!r}", name=driver)
        return real(name, *arguments, **options)

    for module in [name for name in sys.modules if name.startswith(f"nightmail.stores.{extra}")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without_driver)

    with pytest.raises(DriverMissing, match=rf"pip install 'nightmail\[{extra}\]'"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://shop:hunter2@db.example:5433/shop?password=x", "postgresql://db.example:5433/shop"),
        ("sqlite:///nightmail.db", "sqlite:///nightmail.db"),
        ("redis+cluster://:hunter2@cache.example:6379/0", "redis+cluster://cache.example:6379/0"),
        ("memory://", "memory://"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert public_url(url, open_store("memory://")) == shown


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost/shop",
        "redis://localhost/1/2",
        "rediss://localhost/-1",
        "redis://localhost:x/0",
        "postgresql://localhost:99999/shop",
        "postgresql://localhost:x/shop",
        "postgresql://one:5432,two:x/shop",
        "postgresql://[::1]:x/shop",
        "mysql://localhost:99999/shop",
        "mysql://localhost/",
    ],
)
def test_a_url_that_drivers_would_take_for_another_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL looks like"):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://localhost/",
        "redis://localhost/3",
        "postgresql:///shop",
        "postgresql://shop:hunter2@one:5432,two/shop",
        "postgresql://[::1]:5432/shop",
        "postgresql://%2Fvar%2Frun/shop",
    ],
)
def test_other_urls_are_taken(url: str) -> None:
    open_store(url)


def test_a_second_store_in_memory_is_told_to_be_another(caplog: pytest.LogCaptureFixture) -> None:
    stores._in_memory.clear()
    first = open_store("memory://")
    assert caplog.messages == []

    others = [open_store("memory://") for _ in range(2)]

    (told,) = caplog.messages
    assert "second memory:// store" in told
    assert first not in others
