"""Private servers for every test that wants one."""

pytest_plugins = ["testkit.pytest_plugin", "testkit.mariadb_fixtures", "testkit.redis_fixtures"]
