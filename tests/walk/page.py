"""The walks that ARCHITECTURE shows."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "ARCHITECTURE.md"


def assert_shown(title: str, walk: Sequence[str], *, at_most: int) -> None:
    """The page shows exactly this walk, and it is short enough. UPDATE_WALKS=1 writes the page."""
    text = PAGE.read_text("utf-8")
    block = re.compile(rf"(<!-- walk: {re.escape(title)} -->\n```\n)(.*?)(```\n)", re.DOTALL)
    if os.environ.get("UPDATE_WALKS"):
        lines = "".join(f"{name}\n" for name in walk)
        PAGE.write_text(block.sub(lambda found: found[1] + lines + found[3], text), "utf-8")
        text = PAGE.read_text("utf-8")
    found = block.search(text)
    assert found is not None, f"ARCHITECTURE.md has no walk {title!r}"
    # Compared without their order: what runs at the same time may be reached in another one.
    shown = set(found[2].split())
    assert shown == set(walk), (
        f"ARCHITECTURE.md shows another walk of {title!r}: missing {set(walk) - shown}, not seen {shown - set(walk)}. "
        "UPDATE_WALKS=1 writes what was seen"
    )
    assert len(walk) <= at_most, "\n".join((f"{len(walk)} carrying functions, at most {at_most}:", *walk))
