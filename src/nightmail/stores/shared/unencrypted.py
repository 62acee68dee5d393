"""Whether a connection leads to another machine without TLS: told as a finding."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

from nightmail.findings import Code, Finding, Severity


def unencrypted(connection: Any, where: str = "this server") -> Iterator[Finding]:
    """What is wrong with this connection of a driver, which leads to that server.

    Its own end decides, and not what the server says: there may be a pooler or a tunnel in between.
    """
    transport = _transport_of(connection)
    if transport is None or transport.get_extra_info("ssl_object") is not None:
        return
    peer = transport.get_extra_info("peername")
    # A unix socket has no such pair.
    if isinstance(peer, tuple) and not is_loopback(str(peer[0])):
        yield Finding(
            code=Code.CONNECTION_UNENCRYPTED,
            severity=Severity.NOTICE,
            subject=(where,),
            what=f"the connection to {where} is not encrypted",
            evidence=f"it leads to another machine, {peer[0]} port {peer[1]}, without TLS",
            consequence=(
                "who is on the network in between can read and change every message, and may learn the password"
            ),
            remedy="ask for TLS in the URL of the store: docs/stores.md says how. On a network of your own, leave it",
        )


def is_loopback(host: str) -> bool:
    """Whether this address, in numbers, is on this machine."""
    address = ip_address(host)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _transport_of(connection: Any) -> Any:
    """The transport of a connection of any of our drivers; `None` if it has none."""
    # No driver has a public name for it.
    writer = getattr(connection, "_writer", None)
    return getattr(connection, "_transport", None) or getattr(writer, "transport", None)
