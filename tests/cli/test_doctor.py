"""`nightmail doctor` on a terminal, over time, and where it may not look at everything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

from nightmail.cli import doctor as command
from nightmail.cli.output import Output
from nightmail.cli.running import Session
from nightmail.cli.which_store import Chosen
from nightmail.errors import NotAllowed, StoreUnavailable, UnsuitableServer
from nightmail.findings import Code, Finding, Severity
from nightmail.message import Message
from nightmail.operations.doctor import diagnose
from nightmail.outcome import Dead
from nightmail.store import FullStore, Settlement
from nightmail.stores.memory.store import MemoryStore
from nightmail.testing.conformance.build import LEASE
from tests.cli.support import migrated, nightmail, publish, terminal

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def a_finding(code: Code, severity: Severity, what: str = "a queue is slow") -> Finding:
    return Finding(
        code=code, severity=severity, what=what, evidence="seen", consequence="later", remedy="do it"
    )


WARNING = a_finding(Code.KEY_BLOCKED, Severity.WARNING)
FATAL = a_finding(Code.NO_WORKER, Severity.FATAL, "queue mail has no worker")
LASTING = a_finding(Code.REDIS_EVICTION, Severity.FATAL, "messages may be dropped")
NOTICE = a_finding(Code.VERSIONS_MIXED, Severity.NOTICE)


class Enough(Exception):
    """The person has seen enough."""


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("found", "code", "strict"),
    [
        ([], 0, 0),
        ([NOTICE], 0, 0),
        ([WARNING, NOTICE], 1, 0),
        ([FATAL, WARNING], 2, 0),
        ([LASTING], 2, 2),
        ([a_finding(Code.REDIS_PERSISTENCE, Severity.WARNING)], 1, 0),
    ],
)
def test_the_exit_code_is_that_of_the_worst(
    found: list[Finding], code: int, strict: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def these(_store: FullStore) -> list[Finding]:
        return found

    monkeypatch.setattr(command, "diagnose", these)
    url = migrated(f"sqlite:///{tmp_path / 'messages.db'}")

    assert nightmail("doctor", url=url).code == code
    assert nightmail("doctor", "--strict", url=url).code == strict
    assert nightmail("doctor", "--every", "soon", url=url).code == 2


@pytest.mark.sqlite
def test_a_person_reads_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    url = migrated(f"sqlite:///{tmp_path / 'messages.db'}")
    publish(url, Message(queue="mail\x1b[2J", body=b"x"))

    with terminal("doctor", url=url) as person:
        assert person.end() == 2

    seen = ESCAPE.sub("", person.seen)
    assert "FATAL  no live worker consumes queue mail\\x1b[2J\n" in seen
    for label in ("evidence:", "if nothing is done:", "what to do:", "more:"):
        assert label in seen
    assert "docs/runbooks/no-worker.md" in seen


async def watched(
    monkeypatch: pytest.MonkeyPatch, *looks: list[Finding] | Exception, as_json: bool = False
) -> None:
    answers = iter(looks[1:])

    async def next_look(_store: FullStore) -> list[Finding]:
        found = next(answers, Enough())
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(command, "diagnose", next_look)
    store = cast(FullStore, MemoryStore())
    session = Session(Chosen(store, "the store", None), Output(as_json=as_json))
    first = looks[0]
    assert isinstance(first, list)
    with pytest.raises(Enough):
        await command._watch(session, store, first, 0.001, strict=False)


async def test_watching_tells_what_appears_and_what_goes_through_an_outage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = a_finding(Code.KEY_BLOCKED, Severity.WARNING, "a queue is slow")
    down = StoreUnavailable("the connection was lost")

    await watched(monkeypatch, [WARNING], [later, FATAL], down, [FATAL])

    said = capsys.readouterr()
    lines = [line.split("\t")[1:5] for line in said.out.splitlines()]
    assert lines == [
        ["found", "warning", "key-blocked", "a queue is slow"],
        ["found", "fatal", "no-worker", "queue mail has no worker"],
        ["gone", "warning", "key-blocked", "a queue is slow"],
    ]
    assert said.err.count("the connection was lost") == 1


async def test_watching_tells_when_a_finding_gets_worse_or_better(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = a_finding(Code.KEY_BLOCKED, Severity.FATAL, "a queue stands still")

    await watched(monkeypatch, [WARNING], [worse], [worse], [WARNING], [])

    assert [line.split("\t")[1:6] for line in capsys.readouterr().out.splitlines()] == [
        ["found", "warning", "key-blocked", "a queue is slow", "do it"],
        ["worse", "fatal", "key-blocked", "a queue stands still", "do it"],
        ["better", "warning", "key-blocked", "a queue is slow", "do it"],
        ["gone", "warning", "key-blocked", "a queue is slow", "-"],
    ]


async def test_watching_goes_by_what_a_finding_is_about_and_not_by_its_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    await store.open()
    looks: list[list[Finding]] = []
    for queue in ("mail2", "mail3"):
        await store.publish(Message(queue=queue, body=b"x"))
        await store.publish(Message(queue=queue, body=b"x"))
        looks.append(await diagnose(store))
    for _ in range(2):
        (delivery,) = (await store.claim(["mail3"], limit=1, lease=LEASE, token=uuid4())).deliveries
        await store.settle([Settlement(delivery, Dead("rejected"))])
        looks.append(await diagnose(store))
    await store.close()

    await watched(monkeypatch, *looks)

    assert [line.split("\t")[1:5:3] for line in capsys.readouterr().out.splitlines()] == [
        ["found", "no live worker consumes queue mail2"],
        ["found", "no live worker consumes queue mail3"],
        ["found", "1 dead letter waits for a decision"],
        ["gone", "no live worker consumes queue mail3"],
    ]


async def test_a_script_that_watches_gets_one_object_for_each_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await watched(monkeypatch, [WARNING], [], as_json=True)

    found, gone = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (found["change"], found["code"], found["severity"]) == ("found", "key-blocked", "warning")
    assert (gone["change"], gone["code"]) == ("gone", "key-blocked")


class Refusing(MemoryStore):
    """A store whose check ends so, until it is put right."""

    problem: Exception | None = None

    async def check(self, *, adopt: bool = True) -> None:
        if self.problem is not None:
            raise self.problem


@pytest.mark.parametrize(
    ("problem", "code", "severity"),
    [
        (UnsuitableServer("this Redis is a replica"), Code.UNSUITABLE_SERVER, Severity.FATAL),
        (NotAllowed("the account may not read messages"), Code.RIGHTS_MISSING, Severity.NOTICE),
    ],
)
async def test_what_a_check_refuses_is_a_finding_until_it_is_put_right(
    problem: Exception, code: Code, severity: Severity
) -> None:
    store = Refusing()
    await store.open()
    store.problem = problem

    (found,) = await diagnose(store)
    store.problem = None

    assert (found.code, found.severity, found.evidence) == (code, severity, str(problem))
    assert await diagnose(store) == []
    await store.close()
