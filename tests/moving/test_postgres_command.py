"""`nightmail move-outbox`."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nightmail.cli.app import main
from nightmail.cli.audit import VARIABLE
from nightmail.cli.which_store import URL_VARIABLE
from nightmail.message import Message
from nightmail.store import FullStore
from tests.moving.old_outbox import SCHEMA, Old, both, old_process

pytestmark = pytest.mark.postgres

COMMAND = "move-outbox"


@pytest.fixture(autouse=True)
def no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)


def prepare(url: str, work: Callable[[Old, FullStore], Awaitable[object]]) -> None:
    """Do this with the old tables and ours."""

    async def run() -> None:
        async with both(url) as (old, store):
            await work(old, store)

    asyncio.run(run())


async def two_orders_and_one_that_is_leased(old: Old, _: FullStore) -> None:
    await old.publish()
    await old.claim()
    await old.publish()
    await old.publish(timer_id="t-1")


def test_a_dry_run_only_counts(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(postgres_url, two_orders_and_one_that_is_leased)

    for _ in range(2):
        assert main([COMMAND, postgres_url, "--dry-run", "--from-dlq", "outbox_dlq"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "outbox, queue 'orders': 2 waiting, 1 leased by old workers",
            "outbox_dlq: 0 dead letters",
            "nothing was changed",
        ]


def test_it_fails_for_as_long_as_something_is_left(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(postgres_url, two_orders_and_one_that_is_leased)

    assert main([COMMAND, postgres_url]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "moved messages: 2",
        "left there: 1, of these leased by old workers: 1",
    ]

    async def age_the_lease() -> None:
        async with old_process(postgres_url) as old:
            await old.connection.execute("update outbox set acquired_at = now() - interval '61 seconds'")

    asyncio.run(age_the_lease())
    assert main([COMMAND, postgres_url, "--lease-ttl", "60", "--until-empty"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["moved messages: 1", "nothing is left there"]


def test_what_has_moved_is_noted(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "audit.jsonl"
    monkeypatch.setenv(VARIABLE, str(log))
    prepare(postgres_url, two_orders_and_one_that_is_leased)

    main([COMMAND, postgres_url, "--dry-run"])
    main([COMMAND, postgres_url])
    main([COMMAND, postgres_url])

    (line,) = map(json.loads, log.read_text().splitlines())
    assert (line["action"], line["count"]) == ("move-outbox", 2)
    assert line["message"].startswith("move-outbox by ")


def test_rows_that_stay_are_named(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def take_names(old: Old, store: FullStore) -> None:
        for number in range(22):
            await old.publish(timer_id=f"t-{number}")
            await store.publish(Message(queue="orders", body=b"", timer_id=f"t-{number}"))

    prepare(postgres_url, take_names)

    assert main([COMMAND, postgres_url]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "outbox, queue 'orders': 22 waiting, 22 of them with a timer id that is taken here"
    assert said[3] == "  row 1 of queue 'orders' stays: its timer id 't-0' is taken"
    assert said[-1] == "  and 2 more"


def test_it_tells_how_far_it_is(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def many(old: Old, _: FullStore) -> None:
        await old.connection.execute(
            "insert into outbox (queue, payload) select 'orders', 'x' from generate_series(1, 500)"
        )

    prepare(postgres_url, many)
    seconds = itertools.count()
    monkeypatch.setattr("nightmail.cli.moving.monotonic", lambda: next(seconds))

    assert main([COMMAND, postgres_url]) == 0
    assert capsys.readouterr().out.splitlines()[1:-1] == [
        "200 of about 500 moved",
        "400 of about 500 moved",
        "500 of about 500 moved",
        "moved messages: 500",
    ]


def test_interrupted_it_says_that_it_may_be_run_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(postgres_url, lambda old, _: old.publish())

    def press_ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nightmail.cli.moving._print_census", press_ctrl_c)

    assert main([COMMAND, postgres_url]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_other_commands_do_not_need_the_driver() -> None:
    subprocess.run(
        [sys.executable, "-c", "import sys, nightmail.cli.commands; sys.exit('asyncpg' in sys.modules)"],
        check=True,
    )


def test_without_our_tables_it_says_how_to_make_them(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def make_theirs() -> None:
        async with old_process(postgres_url) as old:
            await old.connection.execute(SCHEMA)

    asyncio.run(make_theirs())

    assert main([COMMAND, postgres_url]) == 4
    assert "nightmail migrate" in capsys.readouterr().err


def test_without_their_table_it_says_so(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", postgres_url]) == 0

    assert main([COMMAND, postgres_url]) == 2
    assert "there is no table 'outbox' in this database" in capsys.readouterr().err


def test_our_tables_may_have_another_prefix(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(postgres_url, lambda old, _: old.publish())
    assert main(["migrate", postgres_url, "--tables", "jobs"]) == 0

    assert main([COMMAND, postgres_url, "--tables", "jobs"]) == 0
    assert "moved messages: 1" in capsys.readouterr().out

    async def count() -> int:
        async with old_process(postgres_url) as old:
            found: int = await old.connection.fetchval("select count(*) from jobs_messages")
            return found

    assert asyncio.run(count()) == 1


def test_another_kind_of_store_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([COMMAND, f"sqlite:///{tmp_path / 'm.db'}"]) == 2
    assert "one Postgres database" in capsys.readouterr().err
