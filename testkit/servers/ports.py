"""Ports for servers that will come back on the same one."""

import random
import socket
from pathlib import Path

_LOWEST = 10_000
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on.

    Below the range of outgoing connections. Inside it, a client that reconnects while the server is
    down may be given the server's own port, connect to itself, and keep the server from coming back.
    """
    first_outgoing = int(_OUTGOING.read_text().split()[0])
    ports = range(_LOWEST, first_outgoing if first_outgoing > _LOWEST + 1_000 else 32_768)
    # Not the shared generator: test plugins seed it alike in each of several parallel runs.
    choose = random.SystemRandom()
    while True:
        port = choose.choice(ports)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
