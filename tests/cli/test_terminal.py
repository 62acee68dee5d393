"""On a real terminal: tables, questions, progress, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from nightmail.message import Message
from nightmail.records import DeadFilter
from tests.cli.support import bury, migrated, nightmail, on_store, publish, terminal

pytestmark = pytest.mark.sqlite

ALTERNATE_SCREEN = "\x1b[?1049h"
NORMAL_SCREEN = "\x1b[?1049l"
CURSOR_SHOWN = "\x1b[?25h"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return migrated(f"sqlite:///{tmp_path / 'messages.db'}")


def dead(url: str) -> int:
    return on_store(url, lambda store: store.summarize_dead(DeadFilter())).count


def test_a_table_is_drawn_and_a_message_cannot_draw_in_it(url: str) -> None:
    publish(url, Message(queue="[bold]orders[/bold] :smile:", body=b"x", timer_id="\x1b[2Jt\n"))

    with terminal("list", url=url) as person:
        assert person.end() == 0

    seen = ESCAPE.sub("", person.seen)
    assert "[bold]orders[/bold] :smile:" in seen
    assert "\\x1b[2Jt\\n" in seen
    assert "\x1b[2J" not in person.seen
    assert "───" in seen
    assert "\t" not in seen


def test_a_narrow_terminal_loses_nothing(url: str) -> None:
    publish(url, Message(queue="orders", body=b"x", timer_id="a-timer-id-that-is-rather-long"))

    with terminal("list", url=url, columns=60) as person:
        assert person.end() == 0

    lines = ESCAPE.sub("", person.seen).splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert "…" not in person.seen


def test_json_has_no_colour_on_a_terminal_either(url: str) -> None:
    with terminal("status", "--json", "--over", "0", url=url) as person:
        assert person.end() == 0

    assert person.seen == "[]\n"


@pytest.mark.parametrize(
    ("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 7, 2), ("\n", 7, 2), ("\x04", 7, 2)]
)
def test_nothing_is_deleted_before_a_person_agrees(url: str, answer: str, code: int, left: int) -> None:
    bury(url, "ValueError: 1", "ValueError: 2")

    with terminal("dead", "purge", "--everything", url=url) as person:
        person.until("This will delete 2 dead letters for good. Go on?")
        assert dead(url) == 2
        person.type(answer)
        assert person.end() == code

    assert dead(url) == left
    assert "ValueError: #" in ESCAPE.sub("", person.seen)


def test_ctrl_c_at_the_question_changes_nothing(url: str) -> None:
    bury(url, "ValueError: 1")

    with terminal("dead", "redrive", "--everything", url=url) as person:
        person.until("Go on?")
        assert person.interrupt_until_it_ends() == 7

    assert dead(url) == 1


def test_a_redrive_shows_its_progress_and_can_be_interrupted_and_repeated(url: str) -> None:
    bury(url, *(f"ValueError: {number}" for number in range(30)))

    with terminal("dead", "redrive", "orders", "--rate", "10", "--yes", url=url) as person:
        person.until("redriven")
        person.until("3/30")
        person.interrupt()
        assert person.end() == 130

    so_far = re.search(r"redriven so far: (\d+) of 30", person.seen)
    assert so_far is not None
    assert "the same command goes on" in person.seen
    assert dead(url) == 30 - int(so_far[1])
    assert person.seen.rfind(CURSOR_SHOWN) > person.seen.rfind("\x1b[?25l")

    with terminal("dead", "redrive", "orders", "--yes", url=url) as person:
        assert person.end() == 0
    assert dead(url) == 0


INTERRUPTED = """
import signal, sys
from nightmail.cli.app import main
from nightmail.engine import redriving
from nightmail.stores.sqlite import SQLiteStore

verb = getattr(SQLiteStore, sys.argv[1])

async def interrupted(*arguments, **options):
    answer = await verb(*arguments, **options)
    signal.raise_signal(signal.SIGINT)
    return answer

setattr(SQLiteStore, sys.argv[1], interrupted)
redriving.CHUNK = redriving.MESSAGES = 2
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[2:]))
"""
"""A command during whose first step of this kind Ctrl-C is pressed."""


@pytest.mark.parametrize(
    ("verb", "command", "said"),
    [
        ("purge", ["dead", "purge", "mail"], "deleted so far: 2 of 5"),
        ("redrive", ["dead", "redrive", "mail"], "redriven so far: 2 of 5"),
        ("cancel_all", ["cancel", "orders", "--everything"], "removed so far: 2 of 5"),
    ],
)
def test_what_removes_can_be_interrupted_says_how_far_it_came_and_goes_on_when_repeated(
    url: str, verb: str, command: list[str], said: str
) -> None:
    publish(url, *(Message(queue="orders", body=b"x") for _ in range(5)))
    bury(url, *["no"] * 5, queue="mail")

    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, verb, *command, "--yes", "--url", url],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 130, ran.stderr
    assert ran.stderr.splitlines()[-2] == said
    assert "the same command goes on" in ran.stderr.splitlines()[-1]
    again = nightmail(*command, "--yes", url=url)
    assert again.code == 0
    assert "3 " in again.out.splitlines()[-1]


def test_a_migration_that_waits_shows_it_and_can_be_interrupted_and_repeated(tmp_path: Path) -> None:
    file = tmp_path / "messages.db"
    with closing(sqlite3.connect(file)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("BEGIN IMMEDIATE")

        with terminal("migrate", url=f"sqlite:///{file}") as person:
            person.until("the tables will be created")
            person.until("migrating")
            person.interrupt()
            assert person.end() == 130
        other.rollback()

    assert "the same command goes on" in person.seen
    assert nightmail("migrate", url=f"sqlite:///{file}").code == 0
    assert nightmail("check", url=f"sqlite:///{file}").code == 0


def test_watching_restores_the_terminal(url: str) -> None:
    publish(url, Message(queue="orders", body=b"x"))

    with terminal("status", "--watch", "--over", "200ms", url=url) as person:
        person.until("orders")
        person.until("out/s")
        assert ALTERNATE_SCREEN in person.seen
        person.interrupt()
        assert person.end() == 130

        assert person.seen.rfind(NORMAL_SCREEN) > person.seen.rfind(ALTERNATE_SCREEN)
        assert person.seen.rfind(CURSOR_SHOWN) > person.seen.rfind("\x1b[?25l")
        assert person.echoes()


@pytest.mark.parametrize("count", [100, 20_100], ids=["while it publishes", "while it handles"])
def test_a_benchmark_that_is_interrupted_leaves_nothing(url: str, count: int) -> None:
    with terminal("bench", "--messages", "20000", url=url) as person:
        while max(map(int, re.findall(r"(\d+)/40000", person.until("/40000"))), default=0) < count:
            person.more()
        person.interrupt()
        assert person.end() == 130

    assert on_store(url, lambda store: store.stats()) == {}


def test_tail_shows_what_becomes_due_and_what_dies(url: str) -> None:
    publish(url, Message(queue="orders", body=b"old"))

    with terminal("tail", "orders", "--every", "100ms", url=url) as person:
        person.until("following orders")
        publish(url, Message(queue="orders", body=b"new", timer_id="t-\x1b[2J"))
        seen = person.until("t-\\x1b[2J")
        bury(url, "ValueError: \x1b]0;no", queue="elsewhere")
        assert "old" not in seen
        person.interrupt()
        assert person.end() == 130
    assert "elsewhere" not in person.seen

    with terminal("tail", "--dead", "--every", "100ms", "--body", url=url) as person:
        person.until("following all queues")
        bury(url, "KeyError: \x1b]0;no", queue="mail")
        person.until("KeyError: \\x1b]0;no")
        person.until("secret tea")
        person.interrupt()
        person.end()
    assert "ValueError" not in person.seen


def test_being_terminated_is_like_being_interrupted(url: str) -> None:
    with terminal("status", "--watch", url=url) as person:
        person.until("Ctrl-C ends")
        person.signal(signal.SIGTERM)
        assert person.end() == 130

    assert NORMAL_SCREEN in person.seen


def test_a_reader_that_has_seen_enough_is_no_error(url: str) -> None:
    publish(url, *(Message(queue="orders", body=b"x" * 1000) for _ in range(500)))
    command = f"{sys.executable} -m nightmail list --body --limit 500 --url {url} | head -1"

    ran = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)

    assert ran.stdout.startswith("id\t")
    assert "Traceback" not in ran.stderr
    assert "BrokenPipe" not in ran.stderr


def test_following_in_json_is_one_object_per_line(url: str) -> None:
    with terminal("tail", "--every", "100ms", "--json", url=url) as person:
        # In JSON nothing but objects is printed: what is published before it follows is not seen.
        while "}\n" not in person.seen:
            publish(url, Message(queue="orders", body=b"x"))
            person.glance()
        person.interrupt()
        person.end()

    first = json.loads(person.seen.splitlines()[0])
    assert first["queue"] == "orders"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("nightmail pa", {"pause", "pauses"}),
        ("nightmail dead re", {"redrive"}),
        ("nightmail dead purge --e", {"--error", "--everything"}),
        ("nightmail migrate --o", {"--offline"}),
    ],
)
def test_completion_knows_the_commands_and_their_options(typed: str, offered: set[str]) -> None:
    """As the shell asks: `--show-completion` itself needs a shell among its ancestors."""
    ran = subprocess.run(
        [sys.executable, "-m", "nightmail"],
        env={
            **os.environ,
            "_NIGHTMAIL_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
        },
        capture_output=True,
        text=True,
        check=True,
    )

    assert set(ran.stdout.split()) == offered
