"""Rows that other software wrote: a claim gives up what it cannot read, and goes on."""

from __future__ import annotations

import pytest

from nightmail.testing.conformance.build import message
from tests.stores.mysql.support import connection, execute, open_store
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
