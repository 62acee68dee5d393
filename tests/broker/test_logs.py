"""What a broker writes to its log: one line for each event, with its time and level, and nothing twice."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pydantic
import pytest
from faststream import AckPolicy
from faststream.exceptions import NackMessage, RejectMessage

from nightmail import Delivery, NoRetry, OutboxBroker
from nightmail.annotations import OutboxMessage
from nightmail.broker.config import OutboxBrokerConfig
from nightmail.errors import StoreUnavailable
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.outcome import Dead, Outcome, Retry
from nightmail.stores.memory import MemoryStore
from tests.broker.support import AT_ONCE, Heard, soon, started
from tests.unit.faulty import FaultyStore, lost_request
from tests.unit.support import QUEUE, Seen, delivery, publish

SECRET = "hunter2"
logger = logging.getLogger("tests.broker.logs")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything from the level of information on."""
    caplog.set_level(logging.INFO, logger=logger.name)
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was said and how loudly, without what comes and goes well."""
    said = [(record.levelname, record.getMessage()) for record in log.records if record.name == logger.name]
    return [
        each for each in said if each[1] not in ("Received", "Processed") and "waiting for" not in each[1]
    ]


def all_of(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name == logger.name]


async def deliver(broker: OutboxBroker, heard: Heard, body: Any = SECRET, ends: int = 1) -> None:
    """Have one message handled until it has ended so many times."""
    async with started(broker):
        sent = await broker.publish(body, "mail")
        await heard.until(lambda: len(heard.of(sent)) == ends)


async def test_a_failure_is_one_line_that_says_what_happens_next(
    log: pytest.LogCaptureFixture, heard: Heard
) -> None:
    broker = OutboxBroker("memory://", logger=logger, observer=heard, retry=retry_first)

    @broker.subscriber("mail")
    async def handle(body: str) -> None:
        raise RuntimeError("no tea left")

    await deliver(broker, heard, ends=2)

    assert lines(log) == [
        (
            "WARNING",
            "message 1 of mail: attempt 1 failed: RuntimeError('no tea left'); next attempt in 0.1 s",
        ),
        (
            "ERROR",
            "message 1 of mail: attempt 2 failed: RuntimeError('no tea left'); a dead letter now: enough",
        ),
    ]
    assert "Processed" not in all_of(log)
    assert SECRET not in log.text
    assert "Traceback" not in log.text


def retry_first(delivery: Delivery, _error: Exception | None) -> Outcome:
    """Once more, and no more."""
    return Retry(timedelta(milliseconds=100)) if delivery.attempt == 1 else Dead("enough")


async def test_ten_failing_attempts_are_ten_lines(log: pytest.LogCaptureFixture, heard: Heard) -> None:
    broker = OutboxBroker("memory://", logger=logger, observer=heard, retry=AT_ONCE)

    @broker.subscriber("mail")
    async def handle(body: str) -> None:
        raise RuntimeError("no tea left")

    await deliver(broker, heard, ends=10)

    assert (
        len([line for each in all_of(log) for line in each.splitlines() if "waiting for" not in line]) == 10
    )


async def test_what_goes_well_is_not_worth_a_line(log: pytest.LogCaptureFixture, heard: Heard) -> None:
    broker = OutboxBroker("memory://", logger=logger, observer=heard)

    @broker.subscriber("mail")
    async def handle(body: str) -> None: ...

    await deliver(broker, heard)

    assert all_of(log) == ["`Handle` waiting for messages"]


async def test_the_access_log_is_at_debug_and_a_level_that_changes_is_heeded_at_once(
    log: pytest.LogCaptureFixture, heard: Heard
) -> None:
    broker = OutboxBroker("memory://", logger=logger, observer=heard)

    @broker.subscriber("mail")
    async def handle(body: str) -> None: ...

    async with started(broker):
        quiet = await broker.publish("quiet", "mail")
        await heard.until(lambda: bool(heard.of(quiet)))
        log.set_level(logging.DEBUG, logger=logger.name)
        loud = await broker.publish("loud", "mail")
        await heard.until(lambda: bool(heard.of(loud)))

    said = [(record.levelname, record.getMessage()) for record in log.records if record.name == logger.name]
    assert said[1:] == [("DEBUG", "Received"), ("DEBUG", "Processed")]


async def test_the_access_log_has_the_level_that_was_asked_for(
    log: pytest.LogCaptureFixture, heard: Heard
) -> None:
    broker = OutboxBroker("memory://", logger=logger, log_level=logging.INFO, observer=heard)

    @broker.subscriber("mail")
    async def handle(body: str) -> None: ...

    await deliver(broker, heard)

    assert [each for each in all_of(log) if "waiting for" not in each] == ["Received", "Processed"]


@pytest.mark.parametrize(
    ("raised", "level"),
    [(NackMessage(delay=60), "INFO"), (RejectMessage(reason="spam\nERROR fake"), "ERROR")],
)
async def test_a_decision_that_is_raised_is_one_line(
    log: pytest.LogCaptureFixture, heard: Heard, raised: Exception, level: str
) -> None:
    broker = OutboxBroker("memory://", logger=logger, observer=heard)

    @broker.subscriber("mail")
    async def handle(body: str) -> None:
        raise raised

    await deliver(broker, heard)

    ((said, text),) = lines(log)
    assert said == level
    assert text.isprintable()


@pytest.mark.parametrize("early", [False, True])
async def test_an_error_that_changes_nothing_is_told_too(
    log: pytest.LogCaptureFixture, heard: Heard, early: bool
) -> None:
    broker = OutboxBroker("memory://", logger=logger, observer=heard)

    @broker.subscriber("mail", ack_policy=AckPolicy.NACK_ON_ERROR if early else AckPolicy.ACK)
    async def handle(body: str, msg: OutboxMessage) -> None:
        if early:
            await msg.ack()
        raise RuntimeError("no tea left")

    await deliver(broker, heard)

    assert lines(log) == [
        ("WARNING", "message 1 of mail: attempt 1 failed: RuntimeError('no tea left'); done all the same")
    ]


async def test_what_pydantic_quotes_of_the_body_reaches_neither_log_nor_letter(
    log: pytest.LogCaptureFixture, heard: Heard
) -> None:
    class Order(pydantic.BaseModel):
        total: int

    broker = OutboxBroker("memory://", logger=logger, observer=heard, retry=NoRetry())

    @broker.subscriber("mail")
    async def handle(order: Order) -> None: ...

    await deliver(broker, heard, {"total": SECRET})
    (letter,) = heard.of(1)

    assert SECRET not in log.text
    assert isinstance(letter, Dead)
    assert letter.error is not None
    assert SECRET not in letter.error
    assert "total: Input should be a valid integer" in letter.error


async def test_a_redacting_description_holds_for_the_log_too(
    log: pytest.LogCaptureFixture, heard: Heard
) -> None:
    broker = OutboxBroker(
        "memory://", logger=logger, observer=heard, describe_error=lambda error: type(error).__name__
    )

    @broker.subscriber("mail")
    async def handle(body: str) -> None:
        raise RuntimeError(body)

    await deliver(broker, heard)

    assert SECRET not in log.text
    assert "attempt 1 failed: RuntimeError;" in log.text


async def test_a_shutdown_that_interrupts_a_handler_is_no_error(
    log: pytest.LogCaptureFixture, heard: Heard
) -> None:
    broker = OutboxBroker("memory://", logger=logger, graceful_timeout=0, observer=heard)
    running = asyncio.Event()

    @broker.subscriber("mail")
    async def handle(body: str) -> None:
        running.set()
        await asyncio.Event().wait()

    async with started(broker):
        await broker.publish(SECRET, "mail")
        await soon(running)

    assert [each for each in lines(log) if each[0] != "INFO"] == []


async def test_tracebacks_are_there_for_who_asks(caplog: pytest.LogCaptureFixture, heard: Heard) -> None:
    caplog.set_level(logging.DEBUG, logger=logger.name)
    broker = OutboxBroker("memory://", logger=logger, observer=heard)

    @broker.subscriber("mail")
    async def handle(body: str) -> None:
        raise RuntimeError("no tea left")

    await deliver(broker, heard)

    assert caplog.text.count("Traceback") == 1
    assert "no tea left" in caplog.text


async def test_a_traceback_shows_causes_and_nothing_that_they_quote(
    caplog: pytest.LogCaptureFixture, heard: Heard
) -> None:
    caplog.set_level(logging.DEBUG, logger=logger.name)
    broker = OutboxBroker("memory://", logger=logger, observer=heard)

    @broker.subscriber("mail")
    async def handle(body: str) -> None:
        try:
            pydantic.TypeAdapter(int).validate_python(body)
        except ValueError as error:
            raise RuntimeError("no number") from error

    await deliver(broker, heard)

    assert caplog.text.count("Traceback") == 2
    assert "no number" in caplog.text
    assert "pydantic.TypeAdapter(int)" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(("level", "times"), [(logging.INFO, 0), (logging.DEBUG, 1)])
async def test_a_traceback_is_made_only_where_its_line_is_written(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    heard: Heard,
    level: int,
    times: int,
) -> None:
    caplog.set_level(level, logger=logger.name)
    described: list[BaseException] = []

    def describe(error: BaseException) -> str:
        described.append(error)
        return repr(error)

    monkeypatch.setattr("nightmail.broker.logging.describe", describe)
    broker = OutboxBroker("memory://", logger=logger, log_level=logging.INFO, observer=heard)

    @broker.subscriber("mail")
    async def handle(body: str) -> None:
        raise RuntimeError("no tea left")

    await deliver(broker, heard)

    assert "Received" in all_of(caplog)
    assert (len(described), all_of(caplog).count("RuntimeError")) == (times, times)


@pytest.fixture
def default_log() -> Iterator[None]:
    """FastStream keeps its loggers for the whole process."""
    logging.getLogger("faststream.access.nightmail").handlers.clear()
    yield
    logging.getLogger("faststream.access.nightmail").handlers.clear()


@pytest.mark.usefixtures("default_log")
async def test_by_default_lines_have_their_time_and_level(
    capsys: pytest.CaptureFixture[str], heard: Heard
) -> None:
    broker = OutboxBroker("memory://", observer=heard)

    @broker.subscriber("mail")
    async def handle(body: str) -> None:
        raise RuntimeError("no tea left")

    await deliver(broker, heard)
    observer = _observer(broker)
    observer.store_unavailable(StoreUnavailable("cannot reach db:5432"), timedelta(seconds=2))
    observer.store_recovered()

    seen = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)
    for expected in (
        r"WARNING +- mail \| 1 +- message 1 of mail: attempt 1 failed: RuntimeError\('no tea left'\)",
        r"WARNING +- +\| +- the store is unavailable: cannot reach db:5432; trying again in 2 s",
        r"INFO +- +\| +- the store answers again",
    ):
        assert re.search(rf"(?m)^\d{{4}}-\d\d-\d\d [\d:,]+ +{expected}", seen), seen


@pytest.mark.usefixtures("default_log")
@pytest.mark.parametrize("due", [0, 1])
async def test_an_outage_is_one_line_and_so_is_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, due: int
) -> None:
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)
    store, seen = FaultyStore(MemoryStore()), Seen()
    broker = OutboxBroker(store, observer=seen)

    @broker.subscriber(QUEUE)
    async def handle(body: str) -> None: ...

    await publish(store, due)
    store.upset("claim", lost_request, times=3)
    async with started(broker):
        await seen.until(lambda: seen.recoveries == 1 and sum(map(len, seen.writes)) == due)

    assert len(seen.outages) == 3
    said = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    outage = (
        r"the store is unavailable: the line was cut before the request arrived; trying again in [\d.]+ s"
    )
    first, last = (line for line in said.splitlines() if "the store" in line)
    assert re.fullmatch(rf"{time} WARNING +- +\| +- {outage}", first)
    assert re.fullmatch(rf"{time} INFO +- +\| +- the store answers again", last)


@pytest.mark.usefixtures("default_log")
async def test_the_longest_id_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """An operator types it: those of Redis have 16 digits and more."""
    broker = OutboxBroker("memory://")
    async with broker:
        _observer(broker).lease_lost(delivery(id=2**63 - 1, queue="mail"))

    assert f"| {2**63 - 1} - message" in capsys.readouterr().out


async def test_what_the_rest_of_the_library_says_goes_to_the_brokers_log_too(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    library, stores = logging.getLogger("nightmail"), logging.getLogger("nightmail.stores.tests")
    monkeypatch.setattr(library, "propagate", False)  # As if logging were not configured.

    async with OutboxBroker("memory://", logger=logger):
        stores.warning("no wake-ups for %s", "now")
        assert len(library.handlers) == 1

    assert library.handlers == []
    assert lines(log) == [("WARNING", "no wake-ups for now")]


async def test_an_observer_is_told_beside_the_log_and_does_not_replace_it(
    log: pytest.LogCaptureFixture,
) -> None:
    class Counts(Observer):
        lost = 0

        def drained(self, left: int) -> None:
            self.lost += left

    counts = Counts()
    for observer in (counts, Observers(counts, LoggingObserver())):
        broker = OutboxBroker("memory://", logger=logger, observer=observer)
        async with broker:
            _observer(broker).drained(1)

    assert len(lines(log)) == 2
    assert counts.lost == 2


async def test_a_broker_without_a_logger_leaves_its_lines_to_the_one_of_the_library(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = OutboxBroker("memory://", logger=None)

    async with broker:
        _observer(broker).drained(1)

    assert [record.name for record in caplog.records if "unsettled" in record.getMessage()] == ["nightmail"]


def _observer(broker: OutboxBroker) -> Observer:
    config: Any = broker.config.broker_config
    assert isinstance(config, OutboxBrokerConfig)
    return config.observer
