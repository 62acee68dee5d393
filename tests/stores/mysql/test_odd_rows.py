"""Rows that other software wrote: a claim gives up what it cannot read, and goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nightmail.testing.conformance.build import message
from testkit.servers.mariadb import MariaDB
from tests.stores.mysql.support import connection, execute, open_store
from tests.stores.shared.huge_bodies import HUGE, check_that_it_is_never_in_memory
from tests.stores.shared.odd_rows import OddRows, UnreadableRows

pytestmark = pytest.mark.mysql


class TestOddRows(OddRows):
    """On this store."""


# ------------------------------------------------------------------------------------------- odd rows

ODD = {
    "due at no date": "due_at = '0000-00-00 00:00:00'",
    "due on no day": "due_at = '2020-05-00 00:00:00'",
    "due on a day that is none": "due_at = '2020-02-31 00:00:00'",
    "published at no date": "published_at = '0000-00-00 00:00:00'",
    "expires at no date": "expires_at = '0000-00-00 00:00:00'",
    "failed first at no date": "first_attempt_at = '2020-00-10 00:00:00'",
    "failed last in no year": "last_attempt_at = '0000-05-05 00:00:00'",
}


class TestUnreadableRows(UnreadableRows):
    odd_letter = "died_at = 0"

    @pytest.fixture(params=ODD.values(), ids=list(ODD))
    def assignment(self, request: pytest.FixtureRequest) -> str:
        assignment: str = request.param
        return assignment


async def test_no_date_cannot_be_written_by_a_plain_insert(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        await store.publish(message())
        with pytest.raises(Exception, match="nightmail_messages_dates"):
            await execute(own, "set statement sql_mode = '' for update nightmail_messages set due_at = 0")


@pytest.fixture
def generous(mariadb_server: MariaDB) -> Iterator[None]:
    """The server sends packets of any size: else it would refuse to, instead of us."""
    if not mariadb_server.ours:
        pytest.skip("changes a setting of the server")
    mariadb_server.sql("set global max_allowed_packet = 1073741824")
    yield
    mariadb_server.sql("set global max_allowed_packet = 16777216")


@pytest.mark.usefixtures("generous")
async def test_a_body_that_is_too_large_is_never_in_memory(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        await store.publish_batch([message(b"huge"), message(b"small")])
        await execute(own, HUGE.format(""))
        await own.commit()

        await check_that_it_is_never_in_memory(store)
