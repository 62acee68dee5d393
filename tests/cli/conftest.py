"""Commands find no settings but those that a test gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightmail.cli.which_store import URL_VARIABLE


@pytest.fixture(autouse=True)
def an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs: without a `nightmail.toml`, and without a URL in the environment."""
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    # A terminal of another width would wrap help texts elsewhere.
    monkeypatch.setenv("COLUMNS", "120")
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory
