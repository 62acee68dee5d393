"""Doctor and connections without TLS, and certificates that are no good."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail.findings import Code
from nightmail.stores.shared import unencrypted
from testkit.pytest_plugin import provide
from testkit.servers.mariadb import MariaDB
from tests.stores.mysql.support import open_store
from tests.stores.shared.examining import findings
from tests.stores.shared.unencrypted import (
    ACCOUNT,
    certificate,
    check_other_host,
    check_unknown_authority,
    check_what_is_found,
)

pytestmark = pytest.mark.mysql


@pytest.fixture(scope="module")
def files() -> Iterator[tuple[Path, Path]]:
    with certificate() as files:
        yield files


@pytest.fixture(scope="module")
def own_server(files: tuple[Path, Path]) -> Iterator[MariaDB]:
    """A server that offers TLS."""
    public, key = files
    settings: dict[str, str | int | None] = {"ssl-cert": str(public), "ssl-key": str(key)}
    with provide(MariaDB(settings=settings)) as server:
        yield server


async def test_a_connection_to_another_machine_without_tls_is_found_until_it_has_some(
    own_server: MariaDB, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_server.fresh_database() as url:
        async with open_store(url) as plain, open_store(f"{url}?ssl_ca={files[0]}") as with_tls:
            await check_what_is_found(monkeypatch, own_server.port, plain, with_tls)


@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql"])
async def test_an_engines_connection_is_looked_at_too(
    own_server: MariaDB, files: tuple[Path, Path], driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_server.fresh_database() as url:
        address = url.replace("mysql://", f"mysql+{driver}://")
        context = ssl.create_default_context(cafile=str(files[0]))
        plain, with_tls = (create_async_engine(address, connect_args=more) for more in ({}, {"ssl": context}))
        async with open_store(plain) as one, open_store(with_tls) as other:
            await check_what_is_found(monkeypatch, own_server.port, one, other)
        await plain.dispose()
        await with_tls.dispose()


async def test_a_unix_socket_leads_to_no_other_machine(
    own_server: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unencrypted, "is_loopback", lambda _host: False)
    with own_server.fresh_database() as url:
        async with open_store(f"{url}?unix_socket={own_server.socket}") as store:
            assert await findings(store, Code.CONNECTION_UNENCRYPTED) == []


@pytest.mark.parametrize("trusted", ["ssl=true", "ssl_ca={other}", "ssl_ca={other}&ssl_check_hostname=false"])
async def test_a_certificate_of_an_unknown_authority_is_refused(own_server: MariaDB, trusted: str) -> None:
    with certificate() as (other, _):
        url = f"mysql://{ACCOUNT}@127.0.0.1:{own_server.port}/shop?{trusted.format(other=other)}"
        await check_unknown_authority(url)


async def test_a_certificate_for_another_host_is_refused(
    own_server: MariaDB, files: tuple[Path, Path]
) -> None:
    await check_other_host(f"mysql://{ACCOUNT}@localhost:{own_server.port}/shop?ssl_ca={files[0]}")

    # It is the name: where it is not to be looked at, all is well.
    with own_server.fresh_database() as url:
        unnamed = f"{url.replace('127.0.0.1', 'localhost')}?ssl_ca={files[0]}&ssl_check_hostname=false"
        async with open_store(unnamed) as store:
            await store.ping()


@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql"])
async def test_an_engine_refuses_the_same_certificates(
    own_server: MariaDB, files: tuple[Path, Path], driver: str
) -> None:
    def engine(host: str, trusted: Path) -> Any:
        context = ssl.create_default_context(cafile=str(trusted))
        address = f"mysql+{driver}://{ACCOUNT}@{host}:{own_server.port}/shop"
        return create_async_engine(address, connect_args={"ssl": context})

    with certificate() as (other, _):
        unknown, misnamed = engine("127.0.0.1", other), engine("localhost", files[0])
    await check_unknown_authority(unknown)
    await check_other_host(misnamed)
    await unknown.dispose()
    await misnamed.dispose()
