"""The line to the server: what a doctor finds without TLS, and servers that are not who they should be.

This machine is taken for another one.
"""

from __future__ import annotations

import shutil
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.findings import Code, Severity
from nightmail.store import FullStore
from nightmail.stores import open_store
from nightmail.stores.shared import unencrypted
from tests.stores.shared.examining import findings

ACCOUNT: Final = "someone:do-not-tell"
"""Nobody's: a server that is not trusted gets neither."""


@contextmanager
def certificate() -> Iterator[tuple[Path, Path]]:
    """A certificate for 127.0.0.1 and its key, in files that a server can read."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    # Not pytest's directory: the server has a user of its own, who must get to it.
    with TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        public, key = directory / "server.crt", directory / "server.key"
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                "-keyout", key, "-out", public, "-days", "2", "-subj", "/CN=nightmail",
                "-addext", "subjectAltName=IP:127.0.0.1",
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip
        key.chmod(0o644)
        yield public, key


async def check_what_is_found(
    monkeypatch: pytest.MonkeyPatch, port: int, plain: FullStore, with_tls: FullStore
) -> None:
    """Both stores lead to this port of this machine."""
    assert await findings(plain, Code.CONNECTION_UNENCRYPTED) == []
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(unencrypted, "is_loopback", lambda _host: False)
        (found,) = await findings(plain, Code.CONNECTION_UNENCRYPTED)
        assert await findings(with_tls, Code.CONNECTION_UNENCRYPTED) == []

    assert (found.severity, found.lasting) == (Severity.NOTICE, False)
    assert found.evidence == f"it leads to another machine, 127.0.0.1 port {port}, without TLS"


async def check_unknown_authority(source: Any) -> None:
    """A store that leads to a server whose certificate none of those has signed that it trusts."""
    assert "certificate verify failed: self" in await _refusal(source)


async def check_other_host(source: Any) -> None:
    """A store that calls a server `localhost` whose certificate it trusts, and which is only for 127.0.0.1."""
    assert "certificate is not valid for 'localhost'" in await _refusal(source)


async def _refusal(source: Any) -> str:
    """All that is told: not every driver says in its own words which certificate it was, and why."""
    store = open_store(source)
    await store.open()
    try:
        with pytest.raises(StoreUnavailable, match="cannot connect to ") as refused:
            await store.ping()
    finally:
        await store.close()
    told = "".join(traceback.format_exception(refused.value))
    assert ACCOUNT.partition(":")[2] not in told
    return told
