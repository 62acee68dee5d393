"""What a scenario writes down is when the store was hit, and when it was back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

import psycopg
import pytest

from faults.clusters import ClusterPlace, RedisClusterPlace
from faults.scenarios import clusters, servers
from testkit.servers.errors import NotReady
from testkit.servers.postgres import Postgres

GUARDED = "redis-cluster-guarded"


@dataclass(frozen=True, slots=True)
class ACluster(RedisClusterPlace):
    """One without servers, which says what is done to it."""

    done: list[str] = field(default_factory=list)

    async def cut_off_and_fail_over(self, choice: random.Random) -> bool:
        self.done.append("another took over")
        return True

    async def mend(self) -> None:
        self.done.append("mended")


async def played(store: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened in one round of `cut-off`, in order."""

    async def nobody(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(clusters, "cast", nobody)
    monkeypatch.setattr(clusters, "WITHOUT_COPY_SECONDS", 0.0)
    place: ClusterPlace = ACluster(store, "redis+cluster://127.0.0.1:1")
    assert isinstance(place, ACluster)
    done = place.done

    async def busy(_runs: int) -> None:
        done.append("busy")

    stage: Any = SimpleNamespace(
        place=place,
        faults=1,
        random=random.Random(1),
        say=lambda _: None,
        journal=SimpleNamespace(write=done.append),
        note=lambda *_: done.append("over"),
        until_any_busy=busy,
    )
    await clusters.cut_off(stage)
    return done


@pytest.mark.parametrize("store", [GUARDED, "redis-cluster-waiting"])
async def test_what_needs_its_copies_is_back_once_it_is_mended(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nor is anything waited for before: with all publishers at the server that refuses, nothing would run.
    assert await played(store, monkeypatch) == [
        "busy", "another took over", "mended", "over", "returned", "busy",
    ]  # fmt: skip


async def test_what_needs_no_copy_is_back_once_another_has_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await played("redis-cluster", monkeypatch) == [
        "busy", "another took over", "over", "busy", "mended", "returned", "busy",
    ]  # fmt: skip


class AFullPostgres(Postgres):
    """One that a full disk makes end, and that ends once more while it recovers."""

    def __init__(self, ends: int) -> None:
        super().__init__()
        self.ends = ends
        self.done: list[str] = []

    @property
    def running(self) -> bool:
        return self.done[-1:] != ["ended"]

    def sql(self, statement: str) -> None:
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    def start(self, *, within: float = 0.0) -> Self:
        self.done.append("started")
        return self

    def probe(self) -> None:
        if self.ends:
            self.ends -= 1
            self.done.append("ended")
            raise NotReady("it recovers")
        self.done.append("answers")


@pytest.mark.parametrize(
    ("ends", "done"), [(0, ["answers", "over"]), (2, [*2 * ["ended", "started"], "answers", "over"])]
)
async def test_a_store_whose_disk_was_full_is_back_once_it_answers(
    ends: int, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(servers, "cast", nothing)
    monkeypatch.setattr(servers, "FULL_SECONDS", 0.0)
    monkeypatch.setattr(servers, "AGAIN_SECONDS", 0.0)
    server = AFullPostgres(ends)
    refused = iter(range(9))

    async def until(condition: Callable[[], bool], _what: str, *, within: float) -> None:
        assert condition()

    stage: Any = SimpleNamespace(
        place=SimpleNamespace(
            store="postgres", server=server, disk=SimpleNamespace(fill=lambda: None, free=lambda: None)
        ),
        faults=1,
        random=random.Random(1),
        workers=[None],
        say=lambda _: None,
        note=lambda *_: server.done.append("over"),
        until_busy=nothing,
        until=until,
        seen=SimpleNamespace(count=lambda what: next(refused) if what == "refused" else 0),
    )

    await servers.disk_full(stage)

    assert server.done == done
