"""What makes no sense is refused before anything happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightmail.message import Message
from nightmail.records import DeadFilter
from tests.cli.support import bury, migrated, nightmail, on_store, publish

pytestmark = pytest.mark.sqlite

HUGE = "99999999999999999999"
"""No store has an id of so many digits."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = migrated(f"sqlite:///{tmp_path / 'messages.db'}")
    publish(url, Message(queue="orders", body=b"x", timer_id="t"))
    bury(url, "ValueError: no", queue="mail")
    return url


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["list", ""], "queue must not be empty"),
        (["list", "q" * 256], "at most 255"),
        (["list", "--after", "tea"], "a moment and an id"),
        (["list", "--after", "2026-11-17T10:00:00/5"], "no time zone"),
        (["list", "--after", f"2026-11-17T10:00:00Z/{HUGE}"], "is no id"),
        (["list", "--due-within", "soon"], "a duration looks like"),
        (["list", "--due-within", "99999999d"], "99999999d is too long"),
        (["status", "--over", "-1s"], "a duration looks like"),
        (["tail", "--every", "0s"], "no time at all"),
        (["tail", ""], "queue must not be empty"),
        (["show", "--", "-1"], "is no id"),
        (["show", str(2**70)], "is no id"),
        (["publish", "orders"], "give the body"),
        (["publish", "orders", "7", "--file", "x"], "not both"),
        (["publish", "orders", "--file", "nowhere.json"], "cannot be read"),
        (["publish", "orders", "7", "--in", "5m", "--at", "2026-11-17T10:00:00Z"], "not both"),
        (["publish", "orders", "7", "--at", "tomorrow"], "a time looks like"),
        (["publish", "orders", "7", "--at", "2026-11-17T10:00:00"], "no time zone"),
        (["publish", "orders", "7", "--in", "900000000w"], "too long"),
        (["publish", "orders", "7", "--in", "9000w", "--expires-in", "1s"], "expire"),
        (["publish", "orders", "7", "--expires-in", "0s"], "no time at all"),
        (["publish", "orders", "7", "--header", "tea"], "a header is name=text"),
        (["publish", "orders", "7", "--on-conflict", "replace"], "needs a timer_id"),
        (["publish", "orders", "7", "--timer-id", "\x00"], "NUL"),
        (["cancel", "orders"], "--everything"),
        (["cancel", "orders", "t", "--everything"], "--everything"),
        (["reschedule", "orders", "t"], "say when"),
        (["dead", "show", HUGE], "is no id"),
        (["dead", "show", "--", "-1"], "is no id"),
        (["dead", "list", "--error", " "], "--error is empty"),
        (["dead", "list", "--id", "1", "--id", HUGE], "is no id"),
        (["dead", "list", "--before", HUGE], "is no id"),
        (["dead", "redrive"], "which dead letters?"),
        (["dead", "redrive", "--yes"], "which dead letters?"),
        (["dead", "redrive", "--error", ""], "--error is empty"),
        (["dead", "redrive", "--reason", ""], "--reason is empty"),
        (["dead", "redrive", "--older-than", "0s"], "no time at all"),
        (["dead", "redrive", "mail", "--everything"], "goes with no condition"),
        (["dead", "redrive", "mail", "--rate", "0"], "--rate"),
        (["dead", "redrive", "mail", "--to", ""], "queue must not be empty"),
        (["dead", "redrive", "--id", HUGE, "--yes"], "is no id"),
        (["dead", "purge", "--id", HUGE, "--yes"], "is no id"),
        (["dead", "purge"], "which dead letters?"),
        (["dead", "purge", "--yes", "--limit", "5"], "which dead letters?"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_it_is_refused_with_the_way_out_and_nothing_is_changed(
    url: str, command: list[str], said: str
) -> None:
    ran = nightmail(*command, url=url)

    assert ran.code == 2
    assert said in ran.refusal
    stats = on_store(url, lambda store: store.stats())
    assert {name: (each.ready, each.dead) for name, each in stats.items()} == {
        "orders": (1, 0),
        "mail": (0, 1),
    }


def test_a_body_that_is_no_text_is_published_as_it_is(url: str, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"\xff\x00\xfe")

    assert (
        nightmail("publish", "bytes", "--file", str(file), "--content-type", "application/x", url=url).code
        == 0
    )

    (message,) = on_store(url, lambda store: store.peek("bytes"))
    assert (message.body, message.headers) == (b"\xff\x00\xfe", {"content-type": "application/x"})
    shown = nightmail("list", "bytes", "--body", url=url)
    assert "3 bytes, in hexadecimal: ff00fe" in shown.out
    assert nightmail("list", "bytes", "--body", "--json", url=url).answer[0]["body_base64"] == "/wD+"


def test_headers_that_other_software_wrote_are_shown_as_they_are(url: str, tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(tmp_path / "messages.db")) as connection:
        connection.execute("update nightmail_messages set headers = 'not json'")
        connection.commit()

    assert nightmail("list", "--body", "--json", url=url).answer[0]["headers"] == "not json"


def test_a_body_that_is_too_large_is_refused(url: str) -> None:
    ran = nightmail("publish", "orders", "-", url=url, typed=b"x" * (5 * 1024 * 1024))

    assert ran.code == 1
    assert "takes at most" in ran.refusal


HINT = " (--debug shows where)"


def test_a_traceback_is_shown_only_when_asked_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from nightmail.stores.sqlite import SQLiteStore

    async def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division\nby \x1b[31mzero")

    monkeypatch.setattr(SQLiteStore, "dead", fail)

    ran = nightmail("dead", "list", url=url)

    assert ran.code == 70
    assert ran.refusal == "ZeroDivisionError: division by \\x1b[31mzero" + HINT
    debugged = nightmail("dead", "list", "--debug", url=url)
    assert debugged.code == 70
    assert debugged.err.startswith("Traceback (most recent call last):\n")
    assert 'raise ZeroDivisionError("' in debugged.err
    assert debugged.err.splitlines()[-1] == f"nightmail: {ran.refusal.removesuffix(HINT)}"
    assert "\x1b" not in debugged.err
    assert nightmail("resume", "nosuch", "--debug", url=url).code == 6
    assert on_store(url, lambda store: store.summarize_dead(DeadFilter())).count == 1
