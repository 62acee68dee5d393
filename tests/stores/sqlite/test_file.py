"""Which file is meant, who may read it, and whether its tables are what this version makes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail.errors import SchemaMissing, StoreUnavailable
from nightmail.store import Extend
from nightmail.stores import open_store
from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.conformance.build import bodies, claim_all, message

pytestmark = pytest.mark.sqlite


async def do_nothing(extend: Extend) -> None:
    """For `beside`."""


class TestSource:
    @pytest.mark.parametrize(
        ("source", "file"),
        [
            ("sqlite:///shop.db", "{cwd}/shop.db"),
            ("sqlite:///data/shop.db", "{cwd}/data/shop.db"),
            ("sqlite:////var/lib/shop.db", "/var/lib/shop.db"),
            ("sqlite+aiosqlite:///shop.db", "{cwd}/shop.db"),
            ("SQLite:///shop.db", "{cwd}/shop.db"),
            ("sqlite:///with space and %41.db", "{cwd}/with space and %41.db"),
            ("shop.db", "{cwd}/shop.db"),
            (Path("data") / "shop.db", "{cwd}/data/shop.db"),
        ],
    )
    def test_a_url_or_a_path_names_a_file(self, source: Any, file: str) -> None:
        assert SQLiteStore(source).file == file.format(cwd=Path.cwd())

    def test_a_relative_path_means_the_directory_the_store_was_made_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        store = SQLiteStore("sqlite:///shop.db")
        monkeypatch.chdir("/")

        assert store.file == str(tmp_path / "shop.db")

    def test_an_engine_names_its_file(self) -> None:
        assert SQLiteStore(create_async_engine("sqlite+aiosqlite:////var/shop.db")).file == "/var/shop.db"
        uri = create_async_engine("sqlite+aiosqlite:///file:/var/my%20shop.db?uri=true")
        assert SQLiteStore(uri).file == "/var/my shop.db"

    @pytest.mark.parametrize(
        "source", ["sqlite://", "sqlite:///", "sqlite:///:memory:", ":memory:", "sqlite+aiosqlite://"]
    )
    def test_a_database_in_memory_is_refused_with_advice(self, source: str) -> None:
        with pytest.raises(ValueError, match="memory://"):
            SQLiteStore(source)

    @pytest.mark.parametrize(
        "url",
        ["sqlite+aiosqlite://", "sqlite+aiosqlite:///file:shop?mode=memory&cache=shared&uri=true"],
    )
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_an_engine_in_memory_is_refused_with_advice(self, url: str) -> None:
        with pytest.raises(ValueError, match="memory://"):
            SQLiteStore(create_async_engine(url))

    @pytest.mark.parametrize(
        ("source", "complaint"),
        [
            ("postgresql://user:s3cret@host/shop", "sqlite://"),
            ("sqlite://shop.db", "three slashes"),
            ("sqlite:///shop.db?mode=ro", "no options"),
        ],
    )
    def test_another_url_is_refused_without_being_repeated(self, source: str, complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint) as raised:
            SQLiteStore(source)
        assert "s3cret" not in str(raised.value)

    def test_something_else_is_refused(self) -> None:
        with pytest.raises(TypeError, match="URL, a path or an AsyncEngine, not a int"):
            SQLiteStore(7)  # type: ignore[arg-type]

    def test_an_engine_of_another_database_is_refused(self) -> None:
        with pytest.raises(ValueError, match="postgresql has no SQLite file"):
            SQLiteStore(create_async_engine("postgresql+asyncpg://localhost/shop"))

    def test_a_schema_is_refused_because_sqlite_has_none(self) -> None:
        with pytest.raises(ValueError, match="no schemas"):
            SQLiteStore("shop.db", tables="shop.nightmail")

    async def test_the_default_store_is_a_file(self, tmp_path: Path) -> None:
        store = open_store(f"sqlite:///{tmp_path / 'nightmail.db'}")
        await store.open()
        await store.migrate()
        await store.ping()
        await store.close()

        assert store.capabilities.name == "sqlite"
        assert (tmp_path / "nightmail.db").exists()


class TestFile:
    async def test_only_its_owner_may_read_what_is_created(self, store: SQLiteStore, file: Path) -> None:
        await store.publish(message())

        for name in (file, f"{file}-wal", f"{file}-shm"):
            assert stat.S_IMODE(os.stat(name).st_mode) == 0o600

    async def test_a_file_that_is_there_keeps_its_rights(self, file: Path) -> None:
        file.touch(mode=0o640)
        file.chmod(0o640)

        store = SQLiteStore(file)
        await store.open()
        await store.close()

        assert stat.S_IMODE(file.stat().st_mode) == 0o640

    async def test_a_file_that_cannot_be_created_makes_the_store_unavailable(self, tmp_path: Path) -> None:
        store = SQLiteStore(tmp_path / "missing" / "shop.db")

        with pytest.raises(StoreUnavailable, match=r"missing/shop\.db cannot be created"):
            await store.open()
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.ping()

    async def test_only_making_the_tables_makes_the_file(self, file: Path) -> None:
        store = SQLiteStore(file)
        await store.open()

        for verb in (store.check(), store.publish(message()), store.stats(), claim_all(store)):
            with pytest.raises(SchemaMissing, match=r"no database file .*shop\.db"):
                await verb
        with pytest.raises(StoreUnavailable, match="no database file"):
            await store.ping()
        assert not file.exists()

        await store.migrate()
        await store.check()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        await store.close()

    async def test_a_link_is_followed_and_what_it_leads_to_is_for_its_owner_only(
        self, tmp_path: Path
    ) -> None:
        data, link = tmp_path / "data.db", tmp_path / "link.db"
        link.symlink_to(data)

        store = SQLiteStore(link)
        await store.open()
        await store.migrate()
        await store.close()

        assert link.is_symlink()
        assert stat.S_IMODE(data.stat().st_mode) == 0o600

    async def test_a_file_that_everybody_can_write_is_warned_about(
        self, store: SQLiteStore, file: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        await store.close()
        file.chmod(0o666)

        await store.open()

        (told,) = caplog.messages
        assert str(file) in told
        assert "mode is 0666" in told

    @pytest.mark.parametrize("through_a_link", [False, True])
    async def test_a_directory_in_which_everybody_can_replace_the_file_is_warned_about(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, through_a_link: bool
    ) -> None:
        directory = tmp_path / "data"
        directory.mkdir()
        directory.chmod(0o777)
        file = path = directory / "shop.db"
        if through_a_link:
            path = tmp_path / "link.db"
            path.symlink_to(file)
        store = SQLiteStore(path)

        # Also before there is a file: then another user can be the first to make it.
        await store.open()
        await store.close()
        (before,) = caplog.messages
        caplog.clear()
        await store.open()
        await store.migrate()
        await store.close()
        await store.open()
        await store.close()

        assert before == (
            f"every user of this machine can replace {file}: its directory has mode 0777. "
            f"Run: chmod o-w {directory}"
        )
        assert set(caplog.messages) == {before}

    async def test_a_link_in_a_directory_of_everybody_is_warned_about(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        (shared / "link.db").symlink_to(tmp_path / "shop.db")
        store = SQLiteStore(shared / "link.db")

        await store.open()
        await store.close()

        (told,) = caplog.messages
        assert f"can replace {shared / 'link.db'}: " in told

    async def test_a_directory_like_tmp_is_not_warned_about(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        directory = tmp_path / "sticky"
        directory.mkdir()
        directory.chmod(0o1777)
        store = SQLiteStore(directory / "shop.db")

        await store.open()
        await store.migrate()
        await store.close()

        assert caplog.messages == []

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away"
    )
    async def test_files_and_links_of_other_users_are_warned_about(
        self, store: SQLiteStore, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        await store.close()
        file.chmod(0o666)
        os.chown(file, 12345, -1)
        link = tmp_path / "link.db"
        link.symlink_to(file)
        os.chown(link, 12346, -1, follow_symlinks=False)

        linked = SQLiteStore(link)
        await linked.open()
        await linked.close()

        about_link, about_file = caplog.messages
        assert "a link that user 12346 made, to a file of user 12345" in about_link
        assert "belongs to user 12345" in about_file

    async def test_a_failure_names_the_file_and_has_the_drivers_error_as_its_cause(
        self, store: SQLiteStore, file: Path
    ) -> None:
        def fails(connection: sqlite3.Connection) -> None:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("DELETE FROM effects")

        with pytest.raises(StoreUnavailable, match=r"shop\.db") as raised:
            await store._runtime.writer.write(fails)
        assert isinstance(raised.value.__cause__, sqlite3.Error)

    async def test_an_sqlite_that_is_too_old_is_said_to_be(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))

        with pytest.raises(StoreUnavailable, match=r"needs 3\.35"):
            await SQLiteStore(file).open()

    async def test_a_file_that_another_uses_as_a_plain_one_is_waited_for(self, file: Path) -> None:
        # Without a write-ahead log, and locked: switching to one must wait, and SQLite would not.
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("CREATE TABLE theirs (a)")
            connection.execute("BEGIN EXCLUSIVE")
            store = SQLiteStore(file)
            opening = asyncio.create_task(store.open())
            await asyncio.sleep(0.2)
            assert not opening.done()
            connection.execute("COMMIT")

        await opening
        await store.close()

    async def test_a_file_that_is_no_database_makes_the_store_unavailable(self, file: Path) -> None:
        file.write_bytes(b"not a database, but long enough to be looked at " * 100)

        with pytest.raises(StoreUnavailable, match=r"shop\.db cannot be opened \(SQLITE_NOTADB\)"):
            await SQLiteStore(file).open()

    async def test_a_closed_store_leaves_no_thread_and_no_log_behind(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await store.publish(message(b"kept"))
        async with store.run_on_keeper_thread(do_nothing):
            pass
        await store.close()

        assert [
            thread.name for thread in threading.enumerate() if thread.name.startswith("nightmail-sqlite")
        ] == []
        assert not Path(f"{file}-wal").exists()
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.publish(message())

        await store.open()
        assert bodies(await claim_all(store)) == [b"kept"]
