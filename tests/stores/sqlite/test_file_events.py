"""Where the system tells that the file is written to, nothing looks at it while it is not."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from nightmail.stores.sqlite import SQLiteStore, file_events
from nightmail.stores.sqlite.wakeups import QUIET_WATCH_SECONDS, WATCH_SECONDS, WakeupPoller
from nightmail.testing.conformance.build import QUEUE, message
from tests.stores.sqlite.test_wakeups import hears_others

pytestmark = pytest.mark.sqlite
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")


def descriptors() -> list[str]:
    """What this process has open that tells of files."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(each))
        except FileNotFoundError:  # The one that lists them.
            continue
    return [each for each in found if "inotify" in each]


def tower_of(store: SQLiteStore) -> WakeupPoller:
    return store._runtime._tower


@on_linux
class TestFileEvents:
    async def test_a_write_is_told_and_so_is_the_next_one_after_a_rest(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.touch()
        told: asyncio.Queue[None] = asyncio.Queue()
        events = file_events.watch(str(path), lambda: told.put_nowait(None), rest_seconds=0.01)
        assert events is not None

        for _ in range(3):
            path.write_text("more")
            await asyncio.wait_for(told.get(), 5)
        events.close()

    async def test_what_is_closed_tells_nothing_and_leaves_nothing_open(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.touch()
        told: list[None] = []
        before = descriptors()
        events = file_events.watch(str(path), lambda: told.append(None), rest_seconds=0.0)
        assert events is not None
        path.write_text("more")

        events.close()
        await asyncio.sleep(0)

        assert told == []
        assert descriptors() == before

    async def test_a_file_that_is_not_there_cannot_be_watched(self, tmp_path: Path) -> None:
        before = descriptors()

        assert file_events.watch(str(tmp_path / "none"), lambda: None, rest_seconds=0.0) is None
        assert descriptors() == before

    async def test_a_loop_that_cannot_wait_for_it_has_no_events(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "file"
        path.touch()
        before = descriptors()

        def refuse(*_: object) -> None:
            raise NotImplementedError

        monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)

        assert file_events.watch(str(path), lambda: None, rest_seconds=0.0) is None
        assert descriptors() == before


async def test_other_systems_have_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setattr(sys, "platform", "darwin")

    assert file_events.watch(str(path), lambda: None, rest_seconds=0.0) is None


@on_linux
class TestPolling:
    async def test_it_rests_while_the_file_is_quiet_and_not_once_another_writes(
        self, store: SQLiteStore, file: Path
    ) -> None:
        tower = tower_of(store)
        other = SQLiteStore(file)
        await other.open()
        with store.listen([QUEUE]) as bell:
            await hears_others(store)
            assert await bell.wait(5)
            bell.clear()
            assert tower.watch_seconds == WATCH_SECONDS
            tower._busy_until = 0.0
            assert tower.watch_seconds == QUIET_WATCH_SECONDS

            await other.publish(message())

            assert await bell.wait(5)
            assert tower.watch_seconds == WATCH_SECONDS
        await other.close()

    async def test_nothing_is_watched_without_a_bell_or_after_the_store_was_closed(
        self, store: SQLiteStore
    ) -> None:
        before = descriptors()
        with store.listen([QUEUE]) as bell:
            assert await bell.wait(5)
            assert len(descriptors()) == len(before) + 1
        assert descriptors() == before

        with store.listen([QUEUE]) as bell:
            assert await bell.wait(5)
            await store.close()
            assert descriptors() == before

    async def test_a_store_that_was_opened_again_watches_the_file_again(self, store: SQLiteStore) -> None:
        before = descriptors()
        with store.listen([QUEUE]) as bell:
            assert await bell.wait(5)
            bell.clear()
            await store.close()
            await store.open()
            assert await bell.wait(5)

            assert len(descriptors()) == len(before) + 1

    async def test_the_log_beside_the_file_is_watched_and_not_one_beside_a_link(
        self, store: SQLiteStore, file: Path, tmp_path: Path
    ) -> None:
        link = tmp_path / "elsewhere" / "link.db"
        link.parent.mkdir()
        link.symlink_to(file)
        linked = SQLiteStore(link)
        await linked.open()
        with linked.listen([QUEUE]) as bell:
            assert await bell.wait(5)
            tower = tower_of(linked)
            tower._busy_until = 0.0

            assert tower.watch_seconds == QUIET_WATCH_SECONDS
        await linked.close()


async def test_without_events_it_polls_as_often_as_ever_and_hears_others(
    store: SQLiteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_events, "watch", lambda *_, **__: None)
    other = SQLiteStore(file)
    await other.open()
    with store.listen([QUEUE]) as bell:
        assert await bell.wait(5)
        bell.clear()
        tower = tower_of(store)
        tower._busy_until = 0.0
        assert tower.watch_seconds == WATCH_SECONDS

        await other.publish(message())

        assert await bell.wait(5)
    await other.close()
