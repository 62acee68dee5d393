"""Rows that the server refuses, by a constraint or a trigger of the user's: the others are written."""

from __future__ import annotations

import pytest

from tests.stores.shared.refused_rows import RefusedRows

pytestmark = pytest.mark.mysql


class TestRefusedRows(RefusedRows):
    """On this store."""
