"""The driver knows the types of our statements, and never asks the server for them."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from nightmail.stores.postgres.array_types import _TYPES, tell
from nightmail.stores.postgres.lane import CLAIM, connected
from nightmail.testing.conformance.build import message
from tests.stores.postgres.support import connection, open_store
from tests.stores.support import claim

pytestmark = pytest.mark.postgres


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The types for which a connection of the driver's asked."""
    asked: list[int] = []
    driver: Any = asyncpg.Connection
    introspect = driver._introspect_types

    async def watched(self: Any, oids: Any, timeout: Any) -> Any:
        asked.extend(oids)
        return await introspect(self, oids, timeout)

    monkeypatch.setattr(driver, "_introspect_types", watched)
    return asked


async def test_the_numbers_are_those_of_the_server(postgres_url: str) -> None:
    async with connection(postgres_url) as own:
        found = await own.fetch(
            "select typname::text, oid::int, typarray::int, typdelim::text from pg_type where typname = any($1)",
            list(_TYPES),
        )

    assert {name: (element, array) for name, element, array, _ in found} == _TYPES
    assert {delimiter for *_, delimiter in found} == {","}


async def test_no_statement_needs_a_type_that_the_driver_asks_for(
    postgres_url: str, asked: list[int]
) -> None:
    async with open_store(postgres_url) as store:
        link = await connected(store._connect, CLAIM)
        try:
            for statement in store._statements.values():
                await link.driver.prepare(statement.text)
        finally:
            await link.close()

    assert len(store._statements) > 30
    assert asked == []


async def test_a_driver_that_cannot_be_told_asks_the_server(
    postgres_url: str, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Settings:
        """Of a driver in which what we use has gone."""

    monkeypatch.setattr("nightmail.stores.postgres.link.array_types.tell", lambda _: tell(Settings()))

    async with open_store(postgres_url) as store:
        await store.publish_batch([message(b"a"), message(b"b")])

        assert [delivery.body for delivery in await claim(store)] == [b"a", b"b"]
    assert asked
