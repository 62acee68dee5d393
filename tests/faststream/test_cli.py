"""FastStream's command line: `faststream run` and `faststream publish`."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nightmail import OutboxBroker
from tests.broker.support import Make, Options
from tests.faststream.running import START, faststream, write_app

HOUR = timedelta(hours=1)
TRIES = 5


async def publish(url: str, *ids: int) -> None:
    async with OutboxBroker(url, logger=None) as broker:
        for each in ids:
            await broker.publish({"id": each}, "orders")


async def what_is_left(url: str) -> int:
    async with OutboxBroker(url, logger=None) as broker:
        return len(await broker.stats())


async def test_an_application_runs_and_stops(tmp_path: Path) -> None:
    url = write_app(tmp_path)

    async with faststream(tmp_path, "run", "shop:app") as app:
        await app.says("ready None")
        await publish(url, 7)
        await app.says("took 7")
        ended = await app.stop()

    assert ended == 0, app.said
    assert await what_is_left(url) == 0


async def test_a_message_that_fails_is_one_line_of_the_log(tmp_path: Path) -> None:
    url = write_app(tmp_path)

    async with faststream(tmp_path, "run", "shop:app") as app:
        await app.says("ready None")
        await publish(url, -1)
        await app.says_like(
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING +- orders \| 1 +- message 1 of orders: "
            r"attempt 1 failed: LookupError\('no such order'\); next attempt in [\d.]+ s"
        )
        await app.stop()

    assert sum("attempt 1 failed" in line for line in app.said) == 1
    assert not any("Traceback" in line for line in app.said)


async def test_two_processes_share_the_work(tmp_path: Path) -> None:
    url = write_app(tmp_path)
    orders = range(20)

    async with faststream(tmp_path, "run", "shop:app", "--workers", "2") as app:
        await app.says("ready 0")
        await app.says("ready 1")
        await publish(url, *orders)
        for order in orders:
            await app.says(f"took {order}")
        ended = await app.stop()

    assert ended == 0, app.said
    assert sorted(line for line in app.said if line.startswith("took")) == sorted(f"took {n}" for n in orders)
    assert await what_is_left(url) == 0


async def test_a_changed_application_is_loaded_again(tmp_path: Path) -> None:
    url = write_app(tmp_path)

    async with faststream(tmp_path, "run", "shop:app", "--reload") as app:
        await app.says("ready None")
        app.said.clear()
        for _ in range(TRIES):
            # Again if need be: on a fast machine the application is ready before its files are watched.
            write_app(tmp_path, says="now takes")
            with suppress(AssertionError):
                await app.says("ready None", within=START / TRIES)
                break
        await publish(url, 8)
        await app.says("now takes 8")
        ended = await app.stop()

    assert ended == 0, app.said
    assert await what_is_left(url) == 0


async def test_the_document_is_made_from_a_shell(tmp_path: Path) -> None:
    write_app(tmp_path)

    async with faststream(tmp_path, "docs", "gen", "shop:app") as app:
        ended = await app.ends()

    assert ended == 0, app.said
    document = json.loads((tmp_path / "asyncapi.json").read_text("utf-8"))
    assert [channel["address"] for channel in document["channels"].values()] == ["orders"]


async def test_a_message_is_published_from_a_shell(tmp_path: Path) -> None:
    url = write_app(tmp_path)
    options = ["--queue", "orders", "--timer_id", "order-7", "--activate-in=3600", "--priority", "7"]

    async with faststream(tmp_path, "publish", "shop:app", '{"id": 7}', *options) as app:
        ended = await app.ends()

    assert ended == 0, app.said
    async with OutboxBroker(url, logger=None) as broker:
        (found,) = await broker.pending("orders")
    assert (found.timer_id, found.body, found.priority) == ("order-7", b'{"id":7}', 7)
    assert abs(found.due_at - found.published_at - HOUR) < timedelta(seconds=1)


async def test_a_mistake_in_a_shell_is_told_and_nothing_is_published(tmp_path: Path) -> None:
    url = write_app(tmp_path)

    async with faststream(tmp_path, "publish", "shop:app", "{}", "--queue", "orders", "--prio", "3") as app:
        ended = await app.ends()

    assert ended == 1
    assert "did you mean 'priority'" in "\n".join(app.said)
    assert await what_is_left(url) == 0


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("activate_at", "2031-05-01T12:00:00+00:00", {"due_at": datetime(2031, 5, 1, 12, tzinfo=UTC)}),
        ("activate_at", "2031-05-01T13:00:00+01:00", {"due_at": datetime(2031, 5, 1, 12, tzinfo=UTC)}),
        ("priority", "3", {"priority": 3}),
        ("ordering_key", "7", {"ordering_key": "7"}),
        ("timer_id", "7", {"timer_id": "7"}),
    ],
)
async def test_text_is_read_as_what_the_option_takes(
    make: Make, name: str, text: str, found: dict[str, Any]
) -> None:
    options: Options = {name: text}
    async with make() as broker:
        await broker.publish("x", "q", **options)

        (pending,) = await broker.pending("q")
        assert {each: getattr(pending, each) for each in found} == found


@pytest.mark.parametrize("name", ["activate_in", "expires_in", "dedup_for"])
async def test_a_duration_may_be_text(make: Make, name: str) -> None:
    options: Options = {name: "0.5", "timer_id": "t"}
    async with make() as broker:
        assert await broker.publish("x", "q", **options) is not None


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"activate_in": "soon"}, TypeError, "number of seconds"),
        ({"activate_in": "nan"}, ValueError, "finite"),
        ({"expires_in": "-5"}, ValueError, "positive"),
        ({"activate_at": "tomorrow"}, TypeError, "datetime"),
        ({"activate_at": "2031-05-01T12:00:00"}, ValueError, "aware"),
        ({"priority": "3.5"}, TypeError, "whole number"),
        ({"priority": "10"}, ValueError, "0 to 9"),
    ],
)
async def test_text_that_cannot_be_read_is_refused(
    make: Make, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    async with make() as broker:
        with pytest.raises(error, match=says):
            await broker.publish("x", "q", **options)

        assert await broker.pending() == []
