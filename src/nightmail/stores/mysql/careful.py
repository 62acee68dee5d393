"""aiomysql that sends no password in clear text. Unlike asyncmy, it has no setting for that."""

from __future__ import annotations

import sys
from typing import Any, Final

NO_SUCH_PLUGIN: Final = 2059
CLEAR_TEXT: Final = (
    "the server asks for the password in clear text, and the connection is not encrypted: use TLS (?ssl=true)"
)
_NO_TLS: Final = 2026
_CAN_TLS: Final = 0x0800
_IN_CLEAR_TEXT: Final = "mysql_clear_password"


async def connect_aiomysql(*args: Any, **given: Any) -> Any:
    """One more connection of that driver."""
    # The engine has imported it. Without an engine it need not be installed.
    driver: Any = sys.modules["aiomysql"]
    operational_error = driver.OperationalError

    class Careful(driver.Connection):  # type: ignore[misc]
        async def _request_authentication(self) -> None:
            if self._ssl_context and not self.server_capabilities & _CAN_TLS:
                # The driver would go on without TLS: a man in the middle need only say that there is none.
                raise operational_error(_NO_TLS, "TLS is asked for, and the server does not offer it")
            if _IN_CLEAR_TEXT in (self._client_auth_plugin, self._server_auth_plugin):
                self._refuse_clear_text()
            await super()._request_authentication()

        async def _process_auth(self, plugin_name: bytes, auth_packet: Any) -> Any:
            if plugin_name == _IN_CLEAR_TEXT.encode():
                self._refuse_clear_text()
            return await super()._process_auth(plugin_name, auth_packet)

        def _refuse_clear_text(self) -> None:
            if not self._ssl_context:
                raise operational_error(NO_SUCH_PLUGIN, CLEAR_TEXT)

    connection = Careful(*args, **given)
    await connection._connect()
    return connection
