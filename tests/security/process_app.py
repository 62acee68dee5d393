"""A handler that runs in a process of its own, which has to import it."""

from __future__ import annotations

from pathlib import Path


def keep(body: bytes) -> None:
    """Write what follows the name of a file into that file."""
    file, _, rest = body.partition(b"\0")
    Path(file.decode()).write_bytes(rest)
