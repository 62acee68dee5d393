"""Doctor and connections without TLS, and certificates that are no good."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail.findings import Code
from nightmail.stores.shared import unencrypted
from testkit.pytest_plugin import provide
from testkit.servers import Postgres
from tests.stores.postgres.support import open_store
from tests.stores.shared.examining import findings
from tests.stores.shared.unencrypted import (
    ACCOUNT,
    certificate,
    check_other_host,
    check_unknown_authority,
    check_what_is_found,
)

pytestmark = pytest.mark.postgres


class WithTls(Postgres):
    """A server that offers TLS, with a certificate of its own."""

    def __init__(self, files: tuple[Path, Path]) -> None:
        super().__init__(settings={"ssl": "on"})
        self._files = files

    def prepare(self) -> None:
        super().prepare()
        for file in self._files:
            copy = self.data / file.name
            shutil.copyfile(file, copy)
            # It takes no key that others can read.
            copy.chmod(0o600)
            self._settled().account.own(copy)


@pytest.fixture(scope="module")
def files() -> Iterator[tuple[Path, Path]]:
    with certificate() as files:
        yield files


@pytest.fixture(scope="module")
def own_server(files: tuple[Path, Path]) -> Iterator[WithTls]:
    with provide(WithTls(files)) as server:
        yield server


async def test_a_connection_to_another_machine_without_tls_is_found_until_it_has_some(
    own_server: WithTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_server.fresh_database() as url:
        async with open_store(f"{url}?ssl=disable") as plain, open_store(f"{url}?ssl=require") as with_tls:
            await check_what_is_found(monkeypatch, own_server.port, plain, with_tls)


async def test_an_engines_connection_is_looked_at_too(
    own_server: WithTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_server.fresh_database() as url:
        engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
        monkeypatch.setattr(unencrypted, "is_loopback", lambda _host: False)
        async with open_store(engine) as store:
            assert len(await findings(store, Code.CONNECTION_UNENCRYPTED)) == 1
        await engine.dispose()


async def test_a_unix_socket_leads_to_no_other_machine(
    own_server: WithTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unencrypted, "is_loopback", lambda _host: False)
    with own_server.fresh_database() as url:
        name = url.rpartition("/")[2]
        through = f"postgresql://postgres@/{name}?host={own_server.sockets}&port={own_server.port}"
        async with open_store(through) as store:
            assert await findings(store, Code.CONNECTION_UNENCRYPTED) == []


@pytest.mark.parametrize("mode", ["ssl=verify-ca", "ssl=verify-full", "sslmode=verify-full"])
async def test_a_certificate_of_an_unknown_authority_is_refused(own_server: WithTls, mode: str) -> None:
    with certificate() as (other, _):
        where = f"127.0.0.1:{own_server.port}/shop?{mode}&sslrootcert={other}"
        await check_unknown_authority(f"postgresql://{ACCOUNT}@{where}")


@pytest.mark.parametrize("how", ["ssl", "sslmode"])
async def test_a_certificate_for_another_host_is_refused(
    own_server: WithTls, files: tuple[Path, Path], how: str
) -> None:
    where = f"localhost:{own_server.port}/shop?{how}=verify-full&sslrootcert={files[0]}"
    await check_other_host(f"postgresql://{ACCOUNT}@{where}")

    # It is the name: where it is not to be looked at, all is well.
    with own_server.fresh_database() as url:
        unnamed = f"{url.replace('127.0.0.1', 'localhost')}?{how}=verify-ca&sslrootcert={files[0]}"
        async with open_store(unnamed) as store:
            await store.ping()


async def test_an_engine_refuses_the_same_certificates(own_server: WithTls, files: tuple[Path, Path]) -> None:
    with certificate() as (other, _):
        for host, trusted, check in (
            ("127.0.0.1", other, check_unknown_authority),
            ("localhost", files[0], check_other_host),
        ):
            context = ssl.create_default_context(cafile=str(trusted))
            address = f"postgresql+asyncpg://{ACCOUNT}@{host}:{own_server.port}/shop"
            engine = create_async_engine(address, connect_args={"ssl": context})
            await check(engine)
            await engine.dispose()
