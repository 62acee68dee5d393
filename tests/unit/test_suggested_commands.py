"""A command that a text suggests can be pasted into a shell, whatever its names contain."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta

import pytest

from nightmail.controls import Pause
from nightmail.operations import ailments
from nightmail.operations.reasons import Paused
from nightmail.operations.shell import command, resume_command
from nightmail.records import PendingMessage, QueueStats

NOW = datetime(2026, 11, 17, 3, 0, tzinfo=UTC)
QUEUE = "a b;c"
KEY = "it's $(reboot)"


def a_pause(key: str | None = None, *, automatic: bool = False) -> Pause:
    since = NOW - timedelta(days=2)
    return Pause(
        queue=QUEUE, ordering_key=key, by="ann", reason=None, since=since, until=None, automatic=automatic
    )


def paused(queue: str, key: str | None) -> Paused:
    return Paused(
        queue=queue,
        ordering_key=key,
        by="ann",
        cause=None,
        since=NOW,
        paused_for=timedelta(0),
        until=None,
        ends_in=None,
        automatic=False,
        ahead=0,
    )


def command_in(text: str) -> list[str]:
    """The words that a shell makes of the command between backticks."""
    _, command, *_ = text.split("`")
    return shlex.split(command)


@pytest.mark.parametrize("name", ["orders", "acct-7", "shop.orders_2", "a/b:c@d"])
def test_plain_names_stay_as_they_are(name: str) -> None:
    assert command("pause", name, "--reason", "...") == f"nightmail pause {name} --reason ..."
    assert resume_command(name) == f"nightmail resume {name}"
    assert resume_command("orders", name) == f"nightmail resume orders --key {name}"


@pytest.mark.parametrize("name", [QUEUE, KEY, "a'b", "*", "~", "#a", "a&b", "a\\b", "über", "q" * 255])
def test_other_names_are_one_word_for_a_shell(name: str) -> None:
    assert shlex.split(command("list", name)) == ["nightmail", "list", name]
    assert shlex.split(resume_command("orders", name)) == ["nightmail", "resume", "orders", "--key", name]


def test_a_name_that_looks_like_an_option_is_none() -> None:
    assert command("list", "--body") == "nightmail list -- --body"
    assert resume_command("-x", "-y") == "nightmail resume --key -y -- -x"


def test_a_name_can_neither_begin_a_line_nor_move_the_cursor() -> None:
    assert command("list", "tea\n\x1b[2J\u202e") == "nightmail list 'tea\\n\\x1b[2J\\u202e'"


def test_why_suggests_a_command_for_a_shell() -> None:
    assert command_in(paused(QUEUE, None).text) == ["nightmail", "resume", QUEUE]
    assert command_in(paused(QUEUE, KEY).text) == ["nightmail", "resume", QUEUE, "--key", KEY]


def test_doctor_suggests_commands_for_a_shell() -> None:
    failed = PendingMessage(
        id=7,
        queue=QUEUE,
        timer_id=None,
        ordering_key=None,
        priority=0,
        due_at=NOW,
        published_at=NOW,
        expires_at=None,
        attempts=9,
        body=b"secret",
        encoded_headers="{}",
    )
    stats = QueueStats()

    failing = ailments.retries_fail(QUEUE, [failed], 1, 5).remedy
    forgotten = ailments.pause_forgotten(a_pause(), NOW, stats).remedy
    forgotten_key = ailments.pause_forgotten(a_pause(KEY), NOW, stats).remedy
    open_breaker = ailments.breaker_open(a_pause(automatic=True), NOW, stats).remedy

    assert command_in(failing) == ["nightmail", "pause", QUEUE, "--reason", "..."]
    assert command_in(forgotten) == ["nightmail", "resume", QUEUE]
    assert command_in(forgotten_key) == ["nightmail", "resume", QUEUE, "--key", KEY]
    assert command_in(open_breaker) == ["nightmail", "resume", QUEUE, "--breaker"]
