"""`nightmail status --watch`, through an outage."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from nightmail.cli.output import Output
from nightmail.cli.running import Session
from nightmail.cli.status import Looks, watch_queues
from nightmail.cli.which_store import Chosen
from nightmail.controls import Pause
from nightmail.errors import StoreUnavailable
from nightmail.records import QueueStats
from nightmail.store import FullStore


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


async def watched(*answers: Any, as_json: bool = False) -> None:
    store = cast(FullStore, Answering(*answers, Enough()))
    session = Session(Chosen(store, "the store", None), Output(as_json=as_json))
    with pytest.raises(Enough):
        await watch_queues(session, Looks(store, None), 0.001)


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
