"""What cannot be a caller's transaction on MySQL."""

from __future__ import annotations

import asyncmy
import pytest

from nightmail.errors import CannotJoin, NotInTransaction
from nightmail.testing.conformance.build import message
from testkit.servers.mariadb import connect_arguments
from tests.stores.mysql.support import CALLERS, connection, open_store
from tests.stores.shared.backend import Begin
from tests.stores.shared.refusals import Refusals

pytestmark = pytest.mark.mysql


class TestRefusals(Refusals):
    @pytest.fixture(params=CALLERS.values(), ids=list(CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> Begin:
        begin: Begin = request.param
        return begin


async def test_a_pool_and_a_connection_whose_transaction_has_ended_are_refused(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        pool = await asyncmy.create_pool(**connect_arguments(mysql_url), minsize=0)
        with pytest.raises(CannotJoin):
            await store.publish(message(), transaction=pool)
        pool.close()
        await pool.wait_closed()
        await own.begin()
        await own.commit()
        with pytest.raises(NotInTransaction):
            await store.publish(message(), transaction=own)
