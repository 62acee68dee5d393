"""Doctor and connections without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nightmail.findings import Code
from nightmail.stores.shared import unencrypted
from testkit.pytest_plugin import provide
from testkit.servers.ports import free_port
from testkit.servers.redis import Redis
from tests.stores.redis.support import client, open_store
from tests.stores.shared.examining import findings
from tests.stores.shared.unencrypted import certificate, check_what_is_found

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def files() -> Iterator[tuple[Path, Path]]:
    with certificate() as files:
        yield files


async def test_a_connection_to_another_machine_without_tls_is_found_until_it_has_some(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    public, key = map(str, files)
    options: dict[str, str | int] = {
        "tls-port": port,
        "tls-cert-file": public,
        "tls-key-file": key,
        "tls-auth-clients": "no",
    }
    with provide(Redis(options=options)) as server:
        over_tls = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={public}"
        async with open_store(server.url) as plain, open_store(over_tls) as with_tls:
            await check_what_is_found(monkeypatch, server.port, plain, with_tls)


async def test_a_unix_socket_leads_to_no_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unencrypted, "is_loopback", lambda _host: False)
    with provide(Redis(options={"unixsocket": "s"})) as server:
        through = client(f"unix://{server.data}/s")
        async with through as own, open_store(own) as store:
            assert await findings(store, Code.CONNECTION_UNENCRYPTED) == []
