"""Rows that the database refuses, by a constraint or a trigger of the user's: the others are written."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from nightmail.errors import Refused
from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.conformance.build import bodies, message
from tests.stores.shared.backend import Begin
from tests.stores.shared.refused_rows import RefusedRows, UntoldInTransactions
from tests.stores.sqlite.support import CALLERS, has_arrived, locked

pytestmark = pytest.mark.sqlite


class TestRefusedRows(RefusedRows):
    """On this store."""


class TestUntoldInTransactions(UntoldInTransactions):
    @pytest.fixture(params=CALLERS.values(), ids=list(CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> Begin:
        begin: Begin = request.param
        return begin


class TestOthersInTheSameCommit:
    @pytest.mark.parametrize("how", ["FAIL", "ROLLBACK"])
    async def test_a_refused_message_fails_alone(self, store: SQLiteStore, file: Path, how: str) -> None:
        connection = sqlite3.connect(file)
        connection.execute(
            f"CREATE TRIGGER refuse BEFORE INSERT ON nightmail_messages WHEN new.body = x'00'"
            f" BEGIN SELECT raise({how}, 'no'); END"
        )
        connection.close()

        with locked(file):
            publishing = [
                asyncio.create_task(store.publish(message(body))) for body in (b"a", b"\0", b"b", b"\0", b"c")
            ]
            await asyncio.sleep(0)
            await has_arrived(store._runtime.writer)

        answers = await asyncio.gather(*publishing, return_exceptions=True)
        assert [isinstance(answer, Refused) for answer in answers] == [False, True, False, True, False]
        assert bodies(await store.peek()) == [b"a", b"b", b"c"]
