"""Everything that can go wrong with a test server."""


class ServerError(Exception):
    """A test server cannot be used."""


class ServerUnavailable(ServerError):
    """The server is not installed, and cannot be installed here."""


class ServerFailed(ServerError):
    """The server is installed, and did not do what it was told."""


class NotOurs(ServerError):
    """The server belongs to the user: tests may use it, not stop, kill or pause it."""


class NotReady(ServerError):
    """The server does not answer yet."""
