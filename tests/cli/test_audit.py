"""Each change that a command makes is noted, once it was made: who, what, where and how many; never what was in it."""

from __future__ import annotations

import getpass
import json
import logging
import socket
import stat
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from nightmail.cli import commands
from nightmail.cli.audit import VARIABLE
from nightmail.errors import StoreUnavailable
from nightmail.message import Message
from nightmail.records import DeadFilter
from nightmail.store import FullStore
from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.conformance.build import LEASE
from nightmail.testing.conformance.workers import FIRST, token_of
from tests.cli.support import bury, migrated, nightmail, on_store, publish

pytestmark = pytest.mark.sqlite

ME = f"{getpass.getuser()}@{socket.gethostname()}"
SECRETS = ("secret tea", "remind-7", "acct-7", "no answer")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that can be used."""
    return migrated(f"sqlite:///{tmp_path / 'messages.db'}")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the commands are asked to write."""
    file = tmp_path / "audit.jsonl"
    monkeypatch.setenv(VARIABLE, str(file))
    return file


def an_order(**options: Any) -> Message:
    return Message(queue="orders", body=b"secret tea", **options)


def name_of(command: Sequence[str]) -> str:
    return " ".join(command[:2] if command[0] == "dead" else command[:1])


def lines(log: Path) -> list[dict[str, Any]]:
    """What was noted, without when."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def with_an_order(url: str) -> None:
    publish(url, an_order(timer_id="remind-7", ordering_key="acct-7", due=timedelta(hours=1)))


def with_letters(url: str) -> None:
    bury(url, "no answer", "no answer", "other")


def with_a_pause(url: str) -> None:
    on_store(url, lambda store: store.pause("orders", by="bob"))


def with_a_paused_key(url: str) -> None:
    on_store(url, lambda store: store.pause("orders", ordering_key="acct-7", by="bob"))


def with_an_open_breaker(url: str) -> None:
    on_store(url, lambda store: store.pause("orders", by="w", until=timedelta(hours=1), automatic=True))


def with_a_running_order(url: str) -> None:
    async def work(store: FullStore) -> None:
        await store.publish(an_order())
        await store.claim(["orders"], limit=1, lease=LEASE, token=token_of(FIRST, 1))

    on_store(url, work)


def as_it_is(url: str) -> None:
    """Nothing is there."""


CHANGES: list[tuple[Any, Sequence[str], dict[str, Any]]] = [
    (
        with_letters,
        ["dead", "redrive", "orders", "--error", "no answer", "--yes"],
        {"queue": "orders", "count": 2},
    ),
    (
        with_letters,
        ["dead", "redrive", "--id", "1", "--to", "late", "-y"],
        {"to": "late", "ids": "1", "count": 1},
    ),
    (with_letters, ["dead", "purge", "--everything", "--yes"], {"count": 3}),
    (with_letters, ["dead", "purge", "--id", "1", "--id", "3", "--yes"], {"ids": "1,3", "count": 2}),
    (with_an_order, ["cancel", "orders", "remind-7"], {"queue": "orders", "count": 1}),
    (
        with_an_order,
        ["cancel", "orders", "--everything", "--yes"],
        {"action": "cancel everything", "queue": "orders", "count": 1},
    ),
    (with_an_order, ["reschedule", "orders", "remind-7", "--in", "5m"], {"queue": "orders", "count": 1}),
    (as_it_is, ["pause", "orders", "--by", "ann", "--reason", "no answer"], {"by": "ann", "queue": "orders"}),
    (as_it_is, ["pause", "orders", "--key", "acct-7"], {"action": "pause one key", "queue": "orders"}),
    (with_a_pause, ["resume", "orders"], {"queue": "orders"}),
    (
        with_a_paused_key,
        ["resume", "orders", "--key", "acct-7"],
        {"action": "resume one key", "queue": "orders"},
    ),
    (
        with_an_open_breaker,
        ["resume", "orders", "--breaker"],
        {"action": "resume breaker", "queue": "orders"},
    ),
    (with_a_running_order, ["stop", "1", "--by", "ann"], {"by": "ann", "ids": "1"}),
    (
        as_it_is,
        ["publish", "orders", "secret tea", "--timer-id", "remind-7"],
        {"queue": "orders", "ids": "1", "count": 1},
    ),
    (as_it_is, ["bench", "--messages", "20"], {"count": 20}),
]
WITHOUT_A_CHANGE: list[tuple[Any, Sequence[str], int]] = [
    (as_it_is, ["migrate"], 0),
    (with_letters, ["dead", "redrive", "--everything", "--dry-run"], 0),
    (with_letters, ["dead", "purge", "--everything"], 7),
    (with_an_order, ["cancel", "orders", "other"], 6),
    (with_an_order, ["cancel", "orders", "--everything"], 7),
    (with_an_order, ["publish", "orders", "7", "--timer-id", "remind-7"], 1),
    (with_an_order, ["reschedule", "orders", "other", "--in", "5m"], 6),
    (with_an_order, ["resume", "orders"], 6),
    (with_an_order, ["stop", "1"], 6),
    (with_letters, ["dead", "list"], 0),
    (with_an_order, ["list"], 0),
]


@pytest.mark.parametrize(("given", "command", "noted"), CHANGES, ids=[" ".join(each[1]) for each in CHANGES])
def test_a_change_is_one_line(
    url: str, log: Path, given: Any, command: Sequence[str], noted: dict[str, Any]
) -> None:
    given(url)

    ran = nightmail(*command, url=url)

    (line,) = lines(log)
    assert ran.code == 0
    assert "nightmail.audit" not in ran.err
    del line["time"]
    said = line.pop("message")
    action = name_of(command)
    assert line == {
        "level": "INFO",
        "logger": "nightmail.audit",
        "action": action,
        "by": ME,
        "store": line["store"],
        **noted,
    }
    assert "messages.db" in line["store"]
    assert said.startswith(f"{line['action']} by {line['by']}: store ")
    assert [each for each in SECRETS if each in log.read_text()] == []


@pytest.mark.parametrize(
    ("given", "command", "code"), WITHOUT_A_CHANGE, ids=[" ".join(each[1]) for each in WITHOUT_A_CHANGE]
)
def test_what_changes_nothing_is_not_noted(
    url: str, log: Path, given: Any, command: Sequence[str], code: int
) -> None:
    given(url)

    assert nightmail(*command, url=url).code == code
    assert lines(log) == []


def test_tables_that_are_made_are_noted(tmp_path: Path, log: Path) -> None:
    assert nightmail("migrate", url=f"sqlite:///{tmp_path / 'new.db'}").code == 0

    (line,) = lines(log)
    assert (line["action"], line["by"]) == ("migrate", ME)


def test_every_command_that_can_change_something_is_here() -> None:
    looks = {"status", "list", "show", "tail", "why", "workers", "pauses", "doctor", "check", "groups"}
    named = {name_of(command) for _, command, _ in CHANGES}
    # A test on Postgres: tests/moving.
    named |= {"migrate", "move-outbox"}

    assert named == _names(commands.app) - looks - {f"dead {name}" for name in looks}


def _names(app: typer.Typer, before: str = "") -> set[str]:
    names = {f"{before}{each.name}" for each in app.registered_commands}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        names |= _names(group.typer_instance, f"{group.name} ")
    return names


def test_the_file_is_added_to_and_its_owners_alone(url: str, log: Path) -> None:
    nightmail("pause", "orders", url=url)
    nightmail("resume", "orders", url=url)

    assert [line["action"] for line in lines(log)] == ["pause", "resume"]
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_nothing_is_done_that_could_not_be_noted(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere" / "audit.jsonl"))
    with_an_order(url)

    ran = nightmail("cancel", "orders", "remind-7", url=url)

    assert ran.code == 2
    assert "cannot be written: No such file or directory; nothing was changed" in ran.refusal
    assert len(nightmail("list", url=url).rows) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
def test_a_line_that_cannot_be_written_is_told_with_what_was_done(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "/dev/full")

    ran = nightmail("pause", "orders", url=url)

    assert ran.code == 1
    assert (
        "it was done, but is not in the audit log /dev/full: No space left on device. pause by" in ran.refusal
    )
    assert len(nightmail("pauses", url=url).rows) == 1


def test_what_was_done_before_the_store_failed_is_noted(
    url: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_letters(url)
    monkeypatch.setattr("nightmail.engine.redriving.CHUNK", 1)
    purge = SQLiteStore.purge
    calls: list[int] = []

    async def once(store: SQLiteStore, which: DeadFilter, *, limit: int) -> int:
        if calls:
            raise StoreUnavailable("the disk is gone")
        calls.append(limit)
        return await purge(store, which, limit=limit)

    monkeypatch.setattr(SQLiteStore, "purge", once)

    assert nightmail("dead", "purge", "orders", "--yes", url=url).code == 3
    (line,) = lines(log)
    assert (line["action"], line["count"]) == ("dead purge", 1)


def test_nobody_who_has_not_asked_sees_a_line(url: str) -> None:
    ran = nightmail("pause", "orders", url=url)
    resumed = nightmail("resume", "orders", url=url)

    assert "by" not in ran.err
    assert resumed.err == ""


def test_an_application_that_configures_logging_gets_the_lines(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="nightmail.audit")

    nightmail("pause", "orders", "--by", "ann", url=url)

    (record,) = [each for each in caplog.records if each.name == "nightmail.audit"]
    assert record.getMessage().startswith("pause by ann: store ")
    assert (record.levelname, vars(record)["action"], vars(record)["queue"]) == ("INFO", "pause", "orders")


def test_a_name_cannot_begin_a_line(url: str, log: Path) -> None:
    nightmail("pause", "orders", "--by", "ann\n{}", url=url)

    (line,) = lines(log)
    assert line["by"] == "ann\n{}"
    assert "\n" not in line["message"]
