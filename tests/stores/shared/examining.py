"""Findings about a server: provoked, found, and gone after the remedy."""

from __future__ import annotations

from typing import cast

from nightmail.findings import Code, Examined, Finding
from nightmail.store import FullStore


async def findings(store: FullStore, code: Code) -> list[Finding]:
    """What the store finds of this kind."""
    return [each for each in await cast("Examined", store).examine() if each.code is code]
