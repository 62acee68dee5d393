"""Doctor and connections without TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail.findings import Code
from nightmail.stores.shared import unencrypted
from testkit.pytest_plugin import provide
from testkit.servers.mariadb import MariaDB
from tests.stores.mysql.support import open_store
from tests.stores.shared.examining import findings
from tests.stores.shared.unencrypted import certificate, check_what_is_found

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
