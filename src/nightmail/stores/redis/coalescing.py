"""Concurrent publishes go to the server in one call; in a cluster, those to one slot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from nightmail.errors import StoreUnavailable
from nightmail.message import Message
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.nodes import Nodes
from nightmail.stores.shared.coalescing import PublishCoalescer

MOST_BYTES: Final = 4 * 1024 * 1024

Send: TypeAlias = Callable[[Sequence[Message]], Awaitable[list[int]]]


class _Sender:
    """What the coalescer takes for a connection: each call waits for its own turn."""

    def __init__(self, send: Send) -> None:
        self.send = send

    async def run_patiently(
        self, work: Callable[[Send], Awaitable[list[int]]], *, lost: type[StoreUnavailable], here: bool
    ) -> list[int]:
        return await work(self.send)


class CoalescerBySlot:
    """One coalescer for each slot of a cluster: a node that does not answer holds up only its own publishers."""

    def __init__(self, send: Send, nodes: Nodes, keys: Keys) -> None:
        self._sender = _Sender(send)
        self._nodes = nodes
        self._keys = keys
        self._slots: dict[int, PublishCoalescer[Send]] = {}

    async def publish(self, message: Message) -> int:
        """Store this message, with others or alone."""
        slot = self._nodes.slot(self._keys.tag(message.queue))
        coalescer = self._slots.get(slot)
        if coalescer is None:
            coalescer = self._slots[slot] = PublishCoalescer(
                self._sender, _send, is_refusal=_is_refusal, most_bytes=MOST_BYTES
            )
        return await coalescer.publish(message)


def _send(send: Send, messages: Sequence[Message]) -> Awaitable[list[int]]:
    return send(messages)


def _is_refusal(error: Exception) -> bool:
    """Whether the server refused one of them, and so stored none."""
    return not isinstance(error, StoreUnavailable)
