"""`nightmail migrate` and `nightmail check`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nightmail.cli.app import URL_VARIABLE, main


@pytest.fixture(autouse=True)
def no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'messages.db'}"
    fresh: str = request.getfixturevalue("postgres_url")
    return fresh


def test_migrate_makes_the_tables_that_check_asks_for(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", url]) == 1
    assert "nightmail migrate" in capsys.readouterr().err

    assert main(["migrate", url]) == 0
    assert "up to date" in capsys.readouterr().out
    assert main(["migrate", url]) == 0
    assert main(["check", url]) == 0


def test_the_tables_may_have_another_prefix(url: str) -> None:
    assert main(["migrate", url, "--tables", "jobs"]) == 0
    assert main(["check", url, "--tables", "jobs"]) == 0
    assert main(["check", url]) == 1


def test_the_url_may_come_from_the_environment(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate"]) == 1
    assert URL_VARIABLE in capsys.readouterr().err

    monkeypatch.setenv(URL_VARIABLE, url)
    assert main(["migrate"]) == 0


def test_a_password_among_the_arguments_is_refused_and_not_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["migrate", "postgresql://shop:hunter2@127.0.0.1:1/shop"]) == 1

    said = capsys.readouterr()
    assert URL_VARIABLE in said.err
    assert "hunter2" not in said.err + said.out


def test_a_store_that_does_not_answer_is_an_error_without_the_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "postgresql://shop:hunter2@127.0.0.1:1/shop")

    assert main(["check"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("nightmail: ")
    assert "hunter2" not in said.err + said.out


def test_it_is_a_program_too(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "nightmail.cli", "migrate", f"sqlite:///{tmp_path / 'm.db'}"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "up to date" in ran.stdout
