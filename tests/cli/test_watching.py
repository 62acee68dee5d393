"""Commands that go on until they are interrupted: through an outage, and what the library logs meanwhile."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from nightmail.cli.output import Output
from nightmail.cli.running import Session
from nightmail.cli.status import watch_queues
from nightmail.cli.tail import Followed, follow
from nightmail.cli.which_store import Chosen
from nightmail.controls import MessageFacts, Pause, WorkerRecord
from nightmail.errors import StoreUnavailable
from nightmail.operations.status import Looks
from nightmail.records import DeadLetter, PendingMessage, QueueStats
from nightmail.store import FullStore
from nightmail.stores import open_store
from tests.cli.support import bury, migrated, nightmail


class Enough(Exception):
    """The person has seen enough."""


class Answering:
    """A store that answers so, one answer after another."""

    def __init__(self, *answers: dict[str, QueueStats] | Exception) -> None:
        self._answers = list(answers)

    async def stats(self) -> dict[str, QueueStats]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def pauses(self) -> list[Pause]:
        return []

    async def facts(self, _id: int) -> MessageFacts:
        return MessageFacts(now=datetime.now(UTC), message=None)

    async def workers(self) -> list[WorkerRecord]:
        return []


async def watched(*answers: Any, as_json: bool = False, seconds: float | None = 0.001) -> None:
    store = cast(FullStore, Answering(*answers, Enough()))
    session = Session(Chosen(store, "the store", None), Output(as_json=as_json))
    with pytest.raises(Enough):
        await watch_queues(session, Looks(store, None), seconds)


ONE = {"mail": QueueStats(ready=1)}
GONE = StoreUnavailable("the connection was lost")


async def test_an_outage_is_shown_and_outlived(capsys: pytest.CaptureFixture[str]) -> None:
    await watched(ONE, GONE, GONE, ONE)

    said = capsys.readouterr()
    assert [line.split("\t")[1] for line in said.out.splitlines()] == ["queue", "mail", "queue", "mail"]
    assert [line.count("the connection was lost") for line in said.err.splitlines()] == [1, 1]


async def test_a_script_gets_one_object_per_look(capsys: pytest.CaptureFixture[str]) -> None:
    await watched(ONE, {}, as_json=True)

    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [each["queue"] for each in first["queues"]] == ["mail"]
    assert second["queues"][0]["ready"] == 0
    assert second["queues"][0]["change_per_second"] < 0
    assert first["at"].endswith("Z")


async def test_a_script_is_told_of_an_outage_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    await watched(ONE, GONE, ONE, as_json=True)

    said = capsys.readouterr()
    (line,) = [json.loads(line) for line in said.err.splitlines()]
    assert len(said.out.splitlines()) == 2
    assert (line["level"], "the connection was lost" in line["message"]) == ("WARNING", True)


async def test_where_a_look_takes_long_a_watch_looks_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    clock = count(0.0, 0.25)  # Each time it is asked.

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr("nightmail.operations.status.monotonic", lambda: next(clock))
    monkeypatch.setattr("nightmail.cli.status.asyncio.sleep", sleep)

    await watched(ONE, ONE, seconds=None)
    await watched(ONE, ONE, seconds=2.0)

    # It is asked three times in a look.
    assert rests == [pytest.approx(10.0)] * 2 + [2.0] * 2


async def test_following_goes_on_after_an_outage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Exception] = [GONE, GONE, Enough()]

    async def look(_followed: Followed) -> list[PendingMessage | DeadLetter]:
        raise answers.pop(0)

    monkeypatch.setattr(Followed, "look", look)
    store = open_store("memory://")
    await store.open()
    with pytest.raises(Enough):
        await follow(Session(Chosen(store, "the store", None), Output()), store, None, seconds=0.001)
    await store.close()

    *_, first, second = capsys.readouterr().err.splitlines()
    assert [line.count("the connection was lost") for line in (first, second)] == [1, 1]


@pytest.mark.sqlite
def test_what_the_library_logs_stands_beside_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        logging.getLogger("nightmail"), "propagate", False
    )  # As if logging were not configured.
    file = tmp_path / "shop.db"
    url = migrated(f"sqlite:///{file}")
    file.chmod(0o666)

    plain = nightmail("status", "--over", "0", url=url)
    as_json = nightmail("status", "--over", "0", "--json", url=url)

    assert plain.err.startswith("nightmail: every user of this machine can change the messages in ")
    (line,) = [json.loads(line) for line in as_json.err.splitlines()]
    assert (line["level"], line["logger"]) == ("WARNING", "nightmail.stores.sqlite.ownership")
    assert (plain.out, as_json.answer) == ("", [])
    assert logging.getLogger("nightmail").handlers == []


@pytest.mark.sqlite
def test_a_log_shows_how_far_a_long_command_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightmail.cli.progress.EVERY_SECONDS", 0)
    url = migrated(f"sqlite:///{tmp_path / 'shop.db'}")
    bury(url, "no", "no", "no")

    redriven = nightmail("dead", "redrive", "orders", "--yes", url=url)
    emptied = nightmail("cancel", "orders", "--everything", "--yes", url=url)
    bury(url, "no", "no", "no")
    purged = nightmail("dead", "purge", "orders", "--yes", url=url)

    assert redriven.err.splitlines()[-2:] == ["redriven: none yet, looked at 3", "redriven: 3 of 3"]
    assert emptied.err.splitlines() == ["removed: 3 of 3"]
    assert purged.err.splitlines()[-1] == "deleted: 3 of 3"
