"""Users with no more rights than the documentation gives them."""

from __future__ import annotations

import pytest

from nightmail.errors import NotAllowed
from tests.stores.postgres.support import PostgresBackend
from tests.stores.shared.documented_roles import DocumentedRoles, store_of
from tests.stores.support import EVERYTHING

pytestmark = pytest.mark.postgres


class TestDocumentedRoles(DocumentedRoles):
    async def test_a_publisher_does_not_read_dead_letters(self, backend: PostgresBackend) -> None:
        async with backend.opened(), store_of(backend, "publisher") as (publisher, _):
            with pytest.raises(NotAllowed, match="permission denied"):
                await publisher.dead(EVERYTHING)
