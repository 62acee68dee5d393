"""Doctor and connections without TLS, and certificates that are no good."""

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
from tests.stores.shared.unencrypted import (
    ACCOUNT,
    certificate,
    check_other_host,
    check_unknown_authority,
    check_what_is_found,
)

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def files() -> Iterator[tuple[Path, Path]]:
    with certificate() as files:
        yield files


@pytest.fixture(scope="module")
def own_server(files: tuple[Path, Path]) -> Iterator[tuple[Redis, int]]:
    """A server, and another port of it, which offers TLS."""
    port = free_port()
    public, key = map(str, files)
    options: dict[str, str | int] = {
        "tls-port": port,
        "tls-cert-file": public,
        "tls-key-file": key,
        "tls-auth-clients": "no",
    }
    with provide(Redis(options=options)) as server:
        yield server, port


async def test_a_connection_to_another_machine_without_tls_is_found_until_it_has_some(
    own_server: tuple[Redis, int], files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, port = own_server
    over_tls = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={files[0]}"
    async with open_store(server.url) as plain, open_store(over_tls) as with_tls:
        await check_what_is_found(monkeypatch, server.port, plain, with_tls)


async def test_a_unix_socket_leads_to_no_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unencrypted, "is_loopback", lambda _host: False)
    with provide(Redis(options={"unixsocket": "s"})) as server:
        through = client(f"unix://{server.data}/s")
        async with through as own, open_store(own) as store:
            assert await findings(store, Code.CONNECTION_UNENCRYPTED) == []


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
@pytest.mark.parametrize(
    "trusted", ["", "ssl_ca_certs={other}", "ssl_ca_certs={other}&ssl_check_hostname=false"]
)
async def test_a_certificate_of_an_unknown_authority_is_refused(
    own_server: tuple[Redis, int], scheme: str, trusted: str
) -> None:
    with certificate() as (other, _):
        query = trusted.format(other=other)
        await check_unknown_authority(f"{scheme}://{ACCOUNT}@127.0.0.1:{own_server[1]}?{query}")


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
async def test_a_certificate_for_another_host_is_refused(
    own_server: tuple[Redis, int], files: tuple[Path, Path], scheme: str
) -> None:
    here = f"localhost:{own_server[1]}?ssl_ca_certs={files[0]}"
    await check_other_host(f"{scheme}://{ACCOUNT}@{here}")

    # It is the name: where it is not to be looked at, all is well.
    async with open_store(f"rediss://{here}&ssl_check_hostname=false") as store:
        await store.ping()


async def test_a_client_refuses_the_same_certificates(
    own_server: tuple[Redis, int], files: tuple[Path, Path]
) -> None:
    address = f"{ACCOUNT}@{{}}:{own_server[1]}?ssl_ca_certs={{}}"
    with certificate() as (other, _):
        async with client(f"rediss://{address.format('127.0.0.1', other)}") as own:
            await check_unknown_authority(own)
    async with client(f"rediss://{address.format('localhost', files[0])}") as own:
        await check_other_host(own)
