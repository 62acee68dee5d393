"""A statement changes a row once: the same message twice in a batch goes into two."""

from __future__ import annotations

from collections.abc import Sequence

from nightmail.message import Delivery


def apart(deliveries: Sequence[Delivery]) -> list[list[int]]:
    """Places in groups within which no message occurs twice: nearly always one group."""
    groups: list[dict[int, int]] = []
    for place, delivery in enumerate(deliveries):
        for group in groups:
            if delivery.id not in group:
                group[delivery.id] = place
                break
        else:
            groups.append({delivery.id: place})
    return [list(group.values()) for group in groups]
