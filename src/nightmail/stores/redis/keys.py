"""The names of keys and channels.

All keys of a queue begin with the same `{prefix:queue}`, which in a cluster decides the slot. A queue's name may be
anything, so characters that could end or move those braces are percent-encoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nightmail.message import DeadDelivery, Delivery
from nightmail.stores.redis.ids import digits
from nightmail.stores.shared.table_names import TableNames

_UNSAFE: Final = re.compile(r"[{}%\x00-\x20\x7f]")

MESSAGE: Final = ":m:"
LETTER: Final = ":d:"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one store."""

    prefix: str
    database: int
    """Channels are the same in all databases of a server, so they carry its number."""

    @classmethod
    def named(cls, tables: str | None, database: int) -> Keys:
        """Parse the prefix as every store does; Redis has no schemas."""
        names = TableNames.parse(tables)
        if names.schema is not None:
            raise ValueError("Redis has no schemas: `tables` is the prefix of the keys, without a dot")
        return cls(names.prefix, database)

    def tag(self, queue: str) -> str:
        """What every key of this queue begins with."""
        safe = _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", queue)
        return f"{{{self.prefix}:{safe}}}"

    def of(self, delivery: Delivery) -> str:
        """The key of the delivered message or dead letter."""
        return f"{self.tag(delivery.queue)}{key_suffix(delivery)}"

    @property
    def meta(self) -> str:
        """What every process must agree on."""
        return f"{{{self.prefix}}}:meta"

    @property
    def registry_tag(self) -> str:
        """What keys outside any queue begin with."""
        return f"{{{self.prefix}}}"

    @property
    def queues(self) -> str:
        """The names of the queues, by when they were last listed."""
        return f"{{{self.prefix}}}:queues"

    @property
    def processes(self) -> str:
        """How many stores were opened: each takes a number that makes its ids unique."""
        return f"{{{self.prefix}}}:processes"

    @property
    def channel_suffix(self) -> str:
        """The suffix of a queue's channel, after its tag."""
        return f":bell:{self.database}"

    def channel(self, queue: str) -> str:
        """Where wake-ups of this queue are sent."""
        return self.tag(queue) + self.channel_suffix


def key_suffix(delivery: Delivery) -> str:
    """The part of a message's or dead letter's key after its queue's tag."""
    return f"{LETTER if isinstance(delivery, DeadDelivery) else MESSAGE}{digits(delivery.id).decode()}"
