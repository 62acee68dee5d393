"""Doctor and connections without TLS."""

from __future__ import annotations

import shutil
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
from tests.stores.shared.unencrypted import certificate, check_what_is_found

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
def own_server() -> Iterator[WithTls]:
    with certificate() as files, provide(WithTls(files)) as server:
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
