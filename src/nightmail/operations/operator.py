"""Who gives an order: what a store notes about it."""

from __future__ import annotations

import getpass
import os
import socket


def named(given: str | None) -> str:
    """The name that was given, or `ann@laptop`."""
    if given is not None:
        return given
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number that has no name.
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"
