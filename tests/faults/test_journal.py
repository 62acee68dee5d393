"""The journal: what is written is what is read, and what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.journal import CANCELLED, Journal, count_from, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_lines_are_read_as_they_were_written(path: Path) -> None:
    journal = Journal(path, "worker-1")
    journal.write("started", key="a", id=1, token="t", attempts=2)
    journal.write_all("settled", [{"key": "a", "id": 1}, {"key": "b", "id": 2, "result": "written"}])

    first, second, third = read(path)

    assert (first.what, first.process, first.key, first.attempts) == ("started", "worker-1", "a", 2)
    assert (second.what, second.key, second.result) == ("settled", "a", None)
    assert (third.id, third.result) == (2, "written")
    assert first.at <= second.at == third.at


def test_a_field_that_no_line_has_is_refused(path: Path) -> None:
    with pytest.raises(KeyError):
        Journal(path, "worker-1").write("started", colour="red")


def test_lines_are_counted_by_process_from_where_the_last_count_ended(path: Path) -> None:
    one, other = Journal(path, "worker-1"), Journal(path, "worker-2")
    one.write("started", key="a")
    other.write("ended", key="a", how=CANCELLED)

    counts, cancelled, offset = count_from(path, 0)
    one.write("started", key="b")
    more, none, _ = count_from(path, offset)

    assert counts == {("worker-1", "started"): 1, ("worker-2", "ended"): 1}
    assert (cancelled, none) == (1, 0)
    assert more == {("worker-1", "started"): 1}


def test_runs_of_messages_that_were_published_in_batches_do_not_count(path: Path) -> None:
    bulk, worker = Journal(path, "bulk-1"), Journal(path, "worker-1")
    bulk.write("intended", key="bulk-1/0")
    worker.write("started", key="bulk-1/0")
    worker.write("started", key="publisher-1/0")
    worker.write("booted")

    counts, _, _ = count_from(path, 0)

    assert counts == {("bulk-1", "intended"): 1, ("worker-1", "started"): 1, ("worker-1", "booted"): 1}


def test_what_a_killed_process_has_begun_to_write_is_left_out(path: Path) -> None:
    """A kill can cut a batch of lines at the end of a page, and the next process goes on behind it."""
    journal = Journal(path, "worker-1")
    journal.write("claiming", token="t1", queue="orders")
    with path.open("ab") as file:
        file.write(b'{"what":"claimed","process":"worker-1","at":1.5,"key":"publisher-1/7","queue":"orders",')
    Journal(path, "worker-2").write("claiming", token="t2", queue="orders")

    assert [(line.process, line.token) for line in read(path)] == [("worker-1", "t1"), ("worker-2", "t2")]
