"""The tables in a file: when they are right, when they are not, and how they come to be."""

from __future__ import annotations

import pytest

from nightmail.errors import SchemaDrift
from tests.stores.shared.schema import Schema
from tests.stores.sqlite.support import SQLiteBackend

pytestmark = pytest.mark.sqlite

DRIFTS = [
    ("DROP INDEX nightmail_messages_due", "index nightmail_messages_due is missing"),
    (
        "DROP INDEX nightmail_messages_timer; "
        "CREATE UNIQUE INDEX nightmail_messages_timer ON nightmail_messages (queue, timer_key)",
        "index nightmail_messages_timer was changed",
    ),
    ("ALTER TABLE nightmail_messages ADD COLUMN colour TEXT", "table nightmail_messages was changed"),
    ("ALTER TABLE nightmail_dead DROP COLUMN error", "table nightmail_dead was changed"),
    (
        "UPDATE nightmail_meta SET look_interval = 1",
        "look interval and notice horizon are not those of this version",
    ),
]


class TestSchema(Schema):
    addition = "CREATE INDEX mine ON nightmail_messages (published_at); CREATE TABLE other (a)"

    @pytest.fixture(params=DRIFTS, ids=[told for _, told in DRIFTS])
    def drift(self, request: pytest.FixtureRequest) -> tuple[str, str]:
        drift: tuple[str, str] = request.param
        return drift


async def test_a_missing_index_is_put_back_and_the_tables_keep_their_identity(backend: SQLiteBackend) -> None:
    async with backend.opened() as store:
        ((identity,),) = await backend.run("SELECT identity FROM nightmail_meta")
        await backend.run("DROP INDEX nightmail_messages_due")
        with pytest.raises(SchemaDrift) as raised:
            await store.check()
        assert raised.value.differences == ("the index nightmail_messages_due is missing",)

        await store.migrate()

        await store.check()
        assert await backend.run("SELECT identity FROM nightmail_meta") == [(identity,)]
        assert len(identity) == 32
