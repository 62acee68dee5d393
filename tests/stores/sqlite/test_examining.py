"""What can be wrong with a database file: each finding is provoked, found, and gone after its remedy."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from pathlib import Path

import pytest

from nightmail.findings import Code, Severity
from nightmail.operations.doctor import diagnose
from nightmail.stores.sqlite import SQLiteStore, examining
from nightmail.testing.conformance.build import message
from tests.stores.shared.examining import findings
from tests.stores.support import opened

pytestmark = pytest.mark.sqlite


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "messages.db"


async def test_a_file_in_order_has_no_findings(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "SAFE_VERSION", (3, 0, 0))
    monkeypatch.setattr(examining, "LEAST_FREE", 0)
    async with opened(SQLiteStore(file)) as store:
        assert await store.examine() == []


@pytest.mark.parametrize(
    ("version", "is_found"), [((3, 51, 2), True), ((3, 51, 3), False), ((3, 52, 0), False), (None, None)]
)
async def test_an_old_version_is_found(
    file: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int] | None, is_found: bool | None
) -> None:
    if version is None:
        # The one that this machine has.
        is_found = sqlite3.sqlite_version_info < examining.SAFE_VERSION
    else:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    async with opened(SQLiteStore(file)) as store:
        found = await findings(store, Code.SQLITE_VERSION)

    assert [each.evidence for each in found] == (["it is older than 3.51.3"] if is_found else [])


async def test_a_disk_in_the_network_is_fatal_and_one_of_this_machine_is_not(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(examining, "MOUNTS", str(mounts))
    async with opened(SQLiteStore(file)) as store:
        mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/shared {tmp_path} nfs4 rw 0 0\n")
        (found,) = await findings(store, Code.SQLITE_NETWORK_DISK)
        mounts.write_text(f"server:/shared / nfs4 rw 0 0\n/dev/sda1 {tmp_path} ext4 rw 0 0\n")
        local = await findings(store, Code.SQLITE_NETWORK_DISK)
        mounts.unlink()

        assert (found.severity, found.lasting) == (Severity.FATAL, True)
        assert found.evidence == "its file system is nfs4"
        assert local == []
        # Other systems have no such list.
        assert await findings(store, Code.SQLITE_NETWORK_DISK) == []


async def test_a_log_that_a_reader_keeps_from_shrinking_is_found_until_it_ends(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "LARGEST_LOG", 500_000)
    async with opened(SQLiteStore(file)) as store:
        reader = sqlite3.connect(file, isolation_level=None)
        reader.execute("begin")
        reader.execute("select count(*) from nightmail_messages").fetchall()
        await store.publish_batch([message(os.urandom(1000)) for _ in range(1000)])
        (found,) = await findings(store, Code.SQLITE_LOG_LARGE)
        reader.execute("rollback")
        reader.execute("pragma wal_checkpoint(truncate)").fetchall()
        reader.close()

        assert found.evidence.startswith(f"{os.path.realpath(file)}-wal has ")
        assert await findings(store, Code.SQLITE_LOG_LARGE) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
async def test_a_disk_that_is_nearly_full_is_found_until_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    # Sizes of a file system in memory, which takes only what is written.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
    try:
        async with opened(SQLiteStore(disk / "messages.db")) as store:
            (found,) = await findings(store, Code.SQLITE_DISK_FULL)
            subprocess.run(["mount", "-o", "remount,size=1g", disk], check=True)

            assert re.fullmatch(r"[0-4] MB are free", found.evidence)
            assert await findings(store, Code.SQLITE_DISK_FULL) == []
    finally:
        subprocess.run(["umount", disk], check=True)


async def test_a_changed_table_is_found_until_it_is_changed_back(file: Path) -> None:
    async with opened(SQLiteStore(file)) as store:
        own = sqlite3.connect(file)
        own.execute("drop index nightmail_dead_due")
        own.commit()
        own.close()
        (found,) = [each for each in await diagnose(store) if each.code is Code.SCHEMA_DRIFT]
        await store.migrate()

        assert "nightmail_dead_due" in found.evidence
        assert [each for each in await diagnose(store) if each.code is Code.SCHEMA_DRIFT] == []
