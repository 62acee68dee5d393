"""Failing assertions show their values in the shared tests too, which are not in test modules."""

import pytest

pytest.register_assert_rewrite("tests.stores.shared", "tests.stores.support")
