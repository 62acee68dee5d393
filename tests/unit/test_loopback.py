"""Which addresses are on this machine."""

from __future__ import annotations

import pytest

from nightmail.stores.shared.unencrypted import is_loopback


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.7", False),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.7", False),
        ("0.0.0.0", False),  # noqa: S104 - not bound to
    ],
)
def test_which_addresses_are_on_this_machine(host: str, here: bool) -> None:
    assert is_loopback(host) is here
