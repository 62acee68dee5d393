"""Which part of a store's URL may be shown: in the AsyncAPI document, for one."""

from __future__ import annotations

import pytest

from nightmail.stores import public_url
from nightmail.stores.memory import MemoryStore


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@db:5432/shop?password=hunter2", "postgresql://db:5432/shop"),
        ("postgresql://db/shop?sslpassword=hunter2", "postgresql://db/shop"),
        ("redis://db?password=hunter2", "redis://db"),
        ("redis://db:6379#hunter2", "redis://db:6379"),
        ("postgresql://me:hun/ter2@db/shop", "postgresql://db/shop"),
        ("postgresql://me:hun?ter2@db/shop", "postgresql://"),
        ("postgresql://me:12?ter2@db/shop", "postgresql://"),
        ("postgresql://me:hun@ter2@db/shop", "postgresql://db/shop"),
        ("redis://a:1,b:2/0", "redis://a:1,b:2/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("sqlite:////home/a@b/messages.db?mode=rw", "sqlite:////home/a@b/messages.db"),
        ("memory://", "memory://"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert public_url(url, MemoryStore()) == shown
