"""A statement updates a row only once, so a batch with the same message twice is split into two statements."""

from __future__ import annotations

from collections.abc import Sequence

from nightmail.message import Delivery


def split_duplicates(deliveries: Sequence[Delivery]) -> list[list[int]]:
    """Indexes into `deliveries`, in groups without duplicate messages: nearly always one group."""
    groups: list[dict[int, int]] = []
    for place, delivery in enumerate(deliveries):
        for group in groups:
            if delivery.id not in group:
                group[delivery.id] = place
                break
        else:
            groups.append({delivery.id: place})
    return [list(group.values()) for group in groups]
