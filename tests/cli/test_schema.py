"""`nightmail migrate` and `nightmail check`."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

import nightmail
from nightmail.cli.app import main
from nightmail.cli.which_store import URL_VARIABLE
from nightmail.errors import SchemaDrift
from nightmail.stores.sql import migrations
from nightmail.stores.sqlite import SQLiteStore


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'messages.db'}"
    fresh: str = request.getfixturevalue("postgres_url")
    return fresh


def test_migrate_makes_the_tables_that_check_asks_for(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", url]) == 4
    assert "nightmail migrate" in capsys.readouterr().err

    assert main(["migrate", url]) == 0
    assert "up to date" in capsys.readouterr().out
    assert main(["migrate", url]) == 0
    assert main(["check", url]) == 0


def test_the_tables_may_have_another_prefix(url: str) -> None:
    assert main(["migrate", url, "--tables", "jobs"]) == 0
    assert main(["check", url, "--tables", "jobs"]) == 0
    assert main(["check", url]) == 4


def test_the_url_may_come_from_the_environment(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate"]) == 2
    assert URL_VARIABLE in capsys.readouterr().err

    monkeypatch.setenv(URL_VARIABLE, url)
    assert main(["migrate"]) == 0


def test_a_password_among_the_arguments_is_refused_and_not_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["migrate", "postgresql://shop:hunter2@127.0.0.1:1/shop"]) == 2

    said = capsys.readouterr()
    assert URL_VARIABLE in said.err
    assert "hunter2" not in said.err + said.out


def test_a_store_that_does_not_answer_is_an_error_without_the_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "postgresql://shop:hunter2@127.0.0.1:1/shop")

    assert main(["check"]) == 3
    said = capsys.readouterr()
    assert said.err.startswith("nightmail: ")
    assert "hunter2" not in said.err + said.out


async def test_a_user_without_the_right_to_create_tables_is_told_what_to_grant(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = await asyncpg.connect(postgres_url)
    try:
        await owner.execute("drop role if exists clerk; create role clerk login password 'hunter2'")
        await owner.execute("revoke create on schema public from public")
        parts = urlsplit(postgres_url)
        monkeypatch.setenv(
            URL_VARIABLE, f"postgresql://clerk:hunter2@{parts.hostname}:{parts.port}{parts.path}"
        )

        assert await asyncio.to_thread(main, ["migrate"]) == 5
    finally:
        await owner.execute("drop owned by clerk; drop role clerk")
        await owner.close()

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert 'GRANT USAGE, CREATE ON SCHEMA "public" TO "clerk"' in said
    assert "hunter2" not in said


async def test_a_dropped_index_is_named_and_made_again_by_repair(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(main, ["migrate", postgres_url]) == 0
    owner = await asyncpg.connect(postgres_url)
    await owner.execute("drop index nightmail_claim; drop index nightmail_timer")
    await owner.close()

    assert await asyncio.to_thread(main, ["migrate", postgres_url]) == 4
    said = capsys.readouterr()
    assert "the index nightmail_claim is missing" in said.out
    assert "Only --repair makes missing indexes again" in said.out
    assert "nightmail migrate --repair" in said.err

    assert await asyncio.to_thread(main, ["migrate", "--repair", postgres_url]) == 0
    assert "Missing indexes will be made again" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["check", postgres_url]) == 0


async def test_an_index_that_cannot_be_used_is_made_again_by_repair(postgres_url: str) -> None:
    assert await asyncio.to_thread(main, ["migrate", postgres_url]) == 0
    owner = await asyncpg.connect(postgres_url)
    await owner.execute(
        "update pg_index set indisvalid = false where indexrelid = 'nightmail_claim'::regclass"
    )
    await owner.close()
    assert await asyncio.to_thread(main, ["check", postgres_url]) == 4

    assert await asyncio.to_thread(main, ["migrate", "--repair", postgres_url]) == 0


def test_the_statements_are_printed_and_nothing_is_changed(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", "--sql", url]) == 0

    printed = capsys.readouterr().out
    assert "nightmail_messages" in printed
    assert main(["check", url]) == 4
    assert main(["migrate", "--sql", "--repair", url]) == 2


def upgraded_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the code needs tables of version 2."""
    second = migrations.Step(
        2, 1, alone=False, script="-- serves: 1\n\ncreate table nightmail_tenants (id integer);\n"
    )
    for module in ("sql.migrations", "postgres.migrate", "sqlite.check"):
        monkeypatch.setattr(
            f"nightmail.stores.{module}.steps",
            lambda *_, found, needed: [second] if found < needed else [],
        )
    for module in ("postgres.migrate", "postgres.check", "sqlite.check"):
        monkeypatch.setattr(f"nightmail.stores.{module}.VERSION", 2)


def run_by_hand(url: str, script: str) -> None:
    async def on_postgres() -> None:
        owner = await asyncpg.connect(url)
        await owner.execute(script)
        await owner.close()

    if url.startswith("postgresql:"):
        asyncio.run(on_postgres())
        return
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.executescript(script)


def test_older_tables_are_brought_from_their_version_to_this_one(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["migrate", url])
    upgraded_code(monkeypatch)
    capsys.readouterr()

    assert main(["check", url]) == 4
    assert (
        "the tables are at version 1, this code needs 2. Run `nightmail migrate`" in capsys.readouterr().err
    )
    assert main(["migrate", "--dry-run", url]) == 4
    assert "the tables will be brought from version 1 to 2\n" in capsys.readouterr().out
    assert main(["migrate", url]) == 0
    assert "the tables will be brought from version 1 to 2\n" in capsys.readouterr().out
    assert main(["migrate", url]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_for_older_tables_only_the_statements_that_are_missing_are_printed(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["migrate", url])
    upgraded_code(monkeypatch)
    capsys.readouterr()

    assert main(["migrate", "--sql", url]) == 0
    printed = capsys.readouterr().out
    assert main(["check", url]) == 4
    run_by_hand(url, printed)

    assert "nightmail_tenants" in printed
    assert "create table nightmail_messages" not in printed.lower()
    assert main(["check", url]) == 0


def test_with_nothing_to_do_no_statement_is_printed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["migrate", url])
    capsys.readouterr()

    assert main(["migrate", "--sql", url]) == 0

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith(": nothing to do\n")


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_the_whole_script_can_be_printed_without_a_connection(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", "--sql", "--offline", f"{kind}://127.0.0.1:1/shop"]) == 0
    assert "create table" in capsys.readouterr().out

    assert main(["migrate", "--offline", f"{kind}://127.0.0.1:1/shop"]) == 2


def test_a_store_that_is_down_is_not_taken_for_an_empty_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--sql", "postgresql://127.0.0.1:1/shop"]) == 3

    assert capsys.readouterr().out == ""


def test_the_printed_statements_make_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "by-hand.db"
    main(["migrate", "--sql", f"sqlite:///{file}"])
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(capsys.readouterr().out)

    assert main(["check", f"sqlite:///{file}"]) == 0


async def test_the_printed_statements_make_the_tables_on_postgres(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.to_thread(main, ["migrate", "--sql", "--tables", "night.mail", postgres_url])
    owner = await asyncpg.connect(postgres_url)
    await owner.execute(capsys.readouterr().out)
    await owner.close()

    assert await asyncio.to_thread(main, ["check", "--tables", "night.mail", postgres_url]) == 0


def test_an_unexpected_error_is_one_line_and_a_traceback_only_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(_self: SQLiteStore, *, adopt: bool) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(SQLiteStore, "check", fail)
    url = f"sqlite:///{tmp_path / 'messages.db'}"

    assert main(["check", url]) == 70
    assert capsys.readouterr().err == "nightmail: ZeroDivisionError: division by zero (--debug shows where)\n"

    assert main(["check", "--debug", url]) == 70
    first, *_, raised, _by_zero, said = capsys.readouterr().err.splitlines()
    assert first.startswith("Traceback")
    assert raised == "ZeroDivisionError: division"
    assert said == "nightmail: ZeroDivisionError: division by zero"


def test_names_in_the_database_cannot_move_the_cursor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def differ(_self: SQLiteStore, *, adopt: bool) -> None:
        raise SchemaDrift(["the column \x1b[2J\nx is not of this version"])

    monkeypatch.setattr(SQLiteStore, "check", differ)
    url = f"sqlite:///{tmp_path / 'messages.db'}"

    for command in (
        ["migrate", "--dry-run"],
        ["migrate", "--sql"],
        ["migrate"],
        ["check"],
        ["check", "--json"],
    ):
        main([*command, url])
        said = capsys.readouterr()
        assert "\\x1b[2J" in said.out + said.err or "\\u001b[2J" in said.out
        assert all(each.isprintable() or each == "\n" for each in said.out + said.err)
        assert "\nx is not" not in said.out + said.err


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"nightmail {nightmail.__version__}\n"
    assert nightmail.__version__ == version("nightmail")


@pytest.mark.parametrize("module", ["nightmail", "nightmail.cli"])
def test_it_is_a_program_too(tmp_path: Path, module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", module, "migrate", f"sqlite:///{tmp_path / 'm.db'}"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "up to date" in ran.stdout


def test_check_of_a_file_that_is_not_there_does_not_create_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nope.db"

    assert main(["check", f"sqlite:///{file}"]) != 0

    assert str(file) in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["here"]
