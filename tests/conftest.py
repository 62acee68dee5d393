"""Private servers for every test that wants one."""

import pytest

# Failing assertions show their values in the shared tests too, which are not in test modules.
pytest.register_assert_rewrite("tests.stores.shared", "tests.stores.support")

pytest_plugins = ["testkit.pytest_plugin", "testkit.mariadb_fixtures", "testkit.redis_fixtures"]
