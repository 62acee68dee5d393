"""Private servers for every test that wants one."""

pytest_plugins = ["testkit.pytest_plugin"]
