"""`diagnose`: each finding that any store can have is provoked, found, and gone after its remedy."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from nightmail.controls import WorkerReport
from nightmail.findings import Code, Finding, Severity
from nightmail.operations.doctor import Thresholds, diagnose
from nightmail.outcome import Dead, Done, Retry
from nightmail.records import DeadFilter
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    DAY,
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    bury,
    claim_all,
    claim_one,
    message,
    settle_one,
    stored,
)
from nightmail.testing.conformance.workers import FIRST, SECOND_ID, a_report, token_of
from nightmail.wording import moment

# The clock of these tests is not that of this machine.
CALM = Thresholds(skew=timedelta(days=100_000))


async def found(store: FullStore, code: Code, thresholds: Thresholds = CALM) -> list[Finding]:
    """The findings of this kind."""
    return [each for each in await diagnose(store, thresholds) if each.code is code]


class DiagnosisConformance:
    """What a doctor finds in queues, workers and dead letters."""

    async def test_a_queue_without_a_live_worker_is_found_until_one_reports(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await store.publish(message(queue="later", due=HOUR))
        clock.advance(MINUTE)

        (never,) = await found(store, Code.NO_WORKER)
        await store.report(a_report())
        attended = await found(store, Code.NO_WORKER)
        clock.advance(MINUTE)
        (gone,) = await found(store, Code.NO_WORKER)
        await store.report(a_report())
        await store.sign_off(FIRST)
        clock.advance(2 * DAY)
        (stopped,) = [each for each in await found(store, Code.NO_WORKER) if QUEUE in each.what]

        assert (never.severity, never.lasting, attended) == (Severity.FATAL, False, [])
        assert QUEUE in never.what
        assert never.evidence == "1 message ready, the oldest for 1 min; none has been seen within 90 days"
        assert gone.evidence.endswith("the last one was seen 1 min ago, host-1/77")
        assert stopped.evidence.endswith("the last one was seen 2 d ago, host-1/77")

    async def test_a_silent_worker_that_holds_messages_is_found_until_it_reports(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.report(a_report())
        id_ = await stored(store, message())
        await claim_one(store, lease=HOUR, token=token_of(FIRST, 1))
        assert await found(store, Code.WORKER_SILENT) == []
        clock.advance(MINUTE)

        (silent,) = await found(store, Code.WORKER_SILENT)
        await store.report(a_report())

        assert "host-1/77" in silent.what
        assert f"it holds 1 message, such as {id_} of {QUEUE}" in silent.evidence
        assert await found(store, Code.WORKER_SILENT) == []

    async def test_a_queue_whose_handlers_are_all_busy_is_found_until_it_is_on_time(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        busy = {"queues": [QUEUE], "max_workers": 10, "running": 10, "handler_seconds": 3.0}
        await store.publish(message())
        clock.advance(2 * MINUTE)
        await store.report(a_report(state={"subscribers": [busy]}))

        (found_busy,) = await found(store, Code.WORKERS_BUSY)
        await store.report(a_report(state={"subscribers": [{**busy, "running": 9}]}))

        assert found_busy.evidence == (
            "1 message ready, the oldest for 2 min; all 10 handlers in 1 process are busy; a handler takes 3 s on "
            "average"
        )
        assert {"nightmail workers", "nightmail stop ID"} <= set(found_busy.remedy.split("`"))
        assert await found(store, Code.WORKERS_BUSY) == []

    async def test_one_who_looks_after_dead_letters_consumes_no_messages(self, store: FullStore) -> None:
        await store.publish(message())
        letters = {"queues": [QUEUE], "dead_letters": True}
        await store.report(a_report(queues=(), state={"subscribers": [letters]}))

        assert len(await found(store, Code.NO_WORKER)) == 1
        await store.report(
            a_report(state={"subscribers": [letters, {"queues": [QUEUE], "dead_letters": False}]})
        )
        assert await found(store, Code.NO_WORKER) == []

    async def test_leases_that_workers_say_they_lost_are_found_until_they_start_again(
        self, store: FullStore
    ) -> None:
        state = {
            "subscribers": [{"queues": [QUEUE], "leases_lost": 2}, {"queues": ["mail"], "leases_lost": 1}]
        }
        await store.report(a_report(state=state))

        (lost,) = await found(store, Code.LEASES_LOST)
        await store.report(a_report(state={}))

        assert lost.evidence == "workers lost 3 leases since they started, most of them host-1/77 (3)"
        assert await found(store, Code.LEASES_LOST) == []

    async def test_lost_leases_are_found_until_those_messages_end(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message() for _ in range(3)])
        await claim_all(store)
        assert await found(store, Code.LEASES_LOST) == []
        clock.advance(LEASE)

        again = await claim_all(store)
        (lost,) = await found(store, Code.LEASES_LOST)
        await store.settle([Settlement(each, Done()) for each in again])

        assert lost.evidence.startswith("3 running messages had been delivered before without a result")
        assert await found(store, Code.LEASES_LOST) == []

    async def test_a_handler_that_runs_for_long_is_found_until_it_ends(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.report(a_report())
        id_ = await stored(store, message())
        delivery = await claim_one(store, lease=HOUR, token=token_of(FIRST, 1))
        clock.advance(16 * MINUTE)

        (long,) = await found(store, Code.HANDLER_LONG)
        await settle_one(store, delivery, Done())

        assert long.what == f"a handler of queue {QUEUE} has been running for 16 min"
        assert long.evidence.startswith(f"message {id_}, attempt 1, on host-1/77 since ")
        assert f"its lease is renewed, now until {moment(clock.now() + 44 * MINUTE)}" in long.evidence
        assert f"`nightmail stop {id_}`" in long.remedy
        assert await found(store, Code.HANDLER_LONG) == []

    async def test_handlers_that_outlive_their_lease_are_found_until_they_are_shorter(
        self, store: FullStore
    ) -> None:
        def reported(seconds: float) -> WorkerReport:
            some = {"queues": [QUEUE, "mail"], "lease_seconds": 20.0, "longest_handler_seconds": seconds}
            odd = {"queues": 7, "lease_seconds": "20", "longest_handler_seconds": 90.0}
            longer = {"queues": [QUEUE], "lease_seconds": 60.0, "longest_handler_seconds": 30.0}
            return a_report(state={"subscribers": [some, odd, longer]})

        await store.report(reported(90.0))
        mail, own = await found(store, Code.HANDLER_OUTLIVES_LEASE)
        await store.report(reported(20.0))

        assert (own.severity, own.lasting) == (Severity.NOTICE, False)
        assert own.what == f"handlers of queue {QUEUE} run for longer than their lease lasts"
        assert own.evidence == mail.evidence
        assert own.evidence.startswith("one took 1 min 30 s of late on host-1/77; the lease lasts 20 s")
        assert await found(store, Code.HANDLER_OUTLIVES_LEASE) == []

    async def test_handlers_that_share_too_few_threads_are_found_until_there_are_enough(
        self, store: FullStore
    ) -> None:
        def reported(threads: int | None) -> WorkerReport:
            shared = {"queues": [QUEUE], "blocking_dependencies": ["user"], "shared_threads": threads}
            alone = {
                "queues": [QUEUE],
                "blocking_dependencies": [],
                "shared_threads": threads,
                "max_workers": 90,
            }
            odd = {"queues": [QUEUE], "blocking_dependencies": 7, "shared_threads": 1, "max_workers": 90}
            some = [{**shared, "max_workers": 30}, {**shared, "max_workers": 11}, alone, odd]
            return a_report(state={"subscribers": some})

        await store.report(reported(40))
        (short,) = await found(store, Code.THREADS_SHORT)

        assert short.what == "synchronous dependencies of worker host-1/77 may wait for threads"
        assert (
            short.evidence == "41 handlers may call user at once; anyio has 40 threads for the whole process"
        )
        for enough in (41, None):
            await store.report(reported(enough))
            assert await found(store, Code.THREADS_SHORT) == []

    async def test_two_versions_at_once_are_found_until_one_is_gone(self, store: FullStore) -> None:
        await store.report(a_report(FIRST, version="1.0.0"))
        await store.report(a_report(SECOND_ID, pid=78, version="1.1.0"))

        (mixed,) = await found(store, Code.VERSIONS_MIXED)
        await store.sign_off(FIRST)

        assert mixed.evidence == "1.0.0: host-1/77; 1.1.0: host-1/78"
        assert await found(store, Code.VERSIONS_MIXED) == []

    async def test_dead_letters_are_told_by_their_largest_group_and_whether_they_grow(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for number in range(10):
            await bury(store, message(), Dead("rejected", f"TimeoutError: host 10.0.0.{number}"))
        await bury(store, message(), Dead("expired"))

        (growing,) = await found(store, Code.DEAD_LETTERS_GROWING)
        clock.advance(16 * MINUTE)
        (waiting,) = await found(store, Code.DEAD_LETTERS_WAITING)
        no_longer = await found(store, Code.DEAD_LETTERS_GROWING)
        await store.purge(DeadFilter(), limit=100)

        assert growing.what == "11 messages died within the last 15 min"
        largest = f"the largest group: 10 of {QUEUE}, rejected, TimeoutError: host #.#.#.# (for example "
        assert largest in growing.evidence
        assert waiting.what == "11 dead letters wait for a decision"
        assert waiting.evidence.startswith(largest)
        assert no_longer == []
        assert await found(store, Code.DEAD_LETTERS_WAITING) == []

    async def test_retries_that_keep_failing_are_found_until_they_succeed(self, store: FullStore) -> None:
        await store.publish_batch([message() for _ in range(10)])
        for _ in range(3):
            assert await found(store, Code.RETRIES_FAIL) == []
            await store.settle([Settlement(each, Retry()) for each in await claim_all(store)])

        (failing,) = await found(store, Code.RETRIES_FAIL)
        await store.settle([Settlement(each, Done()) for each in await claim_all(store)])

        assert "of the 10 messages due next, 10 have failed 3 times or more" in failing.evidence
        assert await found(store, Code.RETRIES_FAIL) == []

    async def test_a_blocked_ordering_key_is_found_until_it_moves(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        first = await stored(store, message(ordering_key="acct-7"))
        behind = await stored(store, message(ordering_key="acct-7"))
        await stored(store, message(queue="other", ordering_key="free"))
        (delivery,) = await claim_all(store)
        await settle_one(store, delivery, Retry(2 * HOUR))
        assert await found(store, Code.KEY_BLOCKED) == []
        clock.advance(HOUR + SECOND)

        (blocked,) = await found(store, Code.KEY_BLOCKED)
        clock.advance(HOUR)
        (delivery,) = await claim_all(store)
        await settle_one(store, delivery, Done())

        assert blocked.what == f"1 ordering key of queue {QUEUE} has been blocked for over an hour"
        assert f"key acct-7: message {behind} has been due for 1 h behind {first}" in blocked.evidence
        assert await found(store, Code.KEY_BLOCKED) == []

    async def test_a_pause_that_was_forgotten_is_found_until_it_is_resumed(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await store.pause(QUEUE, by="ann", reason="provider down")
        clock.advance(DAY)
        assert await found(store, Code.PAUSE_FORGOTTEN) == []
        clock.advance(HOUR)

        (forgotten,) = await found(store, Code.PAUSE_FORGOTTEN)
        await store.resume(QUEUE)

        assert forgotten.what == f"queue {QUEUE} has been paused for 1 d 1 h"
        assert forgotten.evidence.endswith(', with no end ("provider down"); 1 message ready')
        assert await found(store, Code.PAUSE_FORGOTTEN) == []

    async def test_an_open_breaker_is_found_until_it_is_closed(self, store: FullStore) -> None:
        await store.publish(message())
        await store.pause(QUEUE, by="host-1/77", reason="20 failures in 60 s", until=MINUTE, automatic=True)

        (opened,) = await found(store, Code.BREAKER_OPEN)
        await store.resume(QUEUE, automatic=True)

        assert '("20 failures in 60 s"); 1 message ready' in opened.evidence
        assert await found(store, Code.BREAKER_OPEN) == []

    async def test_a_clock_that_differs_from_the_stores_is_found_until_it_is_set_right(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        # Not the seconds that are usual: the clock of these tests stands still while a busy machine takes its time.
        an_hour = Thresholds(skew=HOUR)
        clock.move_to(datetime.now(UTC) + 3 * HOUR)
        (behind,) = await found(store, Code.CLOCK_SKEW, an_hour)
        clock.move_to(datetime.now(UTC) - 3 * HOUR)
        (ahead,) = await found(store, Code.CLOCK_SKEW, an_hour)
        clock.move_to(datetime.now(UTC))

        assert re.fullmatch("this machine's clock is .+ behind the store's", behind.what)
        assert re.fullmatch("this machine's clock is .+ ahead of the store's", ahead.what)
        assert await found(store, Code.CLOCK_SKEW, an_hour) == []

    async def test_hosts_whose_clocks_differ_from_the_stores_are_found_until_they_are_set_right(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        async def report(number: int, host: str, said: object) -> None:
            shown = (clock.now() + said).isoformat() if isinstance(said, timedelta) else said
            await store.report(a_report(f"{number:016x}", host=host, pid=number, state={"clock": shown}))

        async def hosts() -> list[Finding]:
            # The clock of this machine is not that of these tests: that is told, too.
            return [each for each in await found(store, Code.CLOCK_SKEW, Thresholds()) if each.subject]

        for number, odd in enumerate((7, "soon", "2026-11-18T05:00:00", "0001-01-01T00:00:00+14:00"), 10):
            await report(number, "odd", odd)
        # Too little, or what a slow report explains.
        await report(1, "in-order", 4 * SECOND)
        await report(2, "slow", -14 * SECOND)
        assert await hosts() == []
        at = clock.now()
        await report(3, "fast", 6 * SECOND)
        (one,) = await hosts()
        await report(4, "late", -MINUTE)
        (both,) = await hosts()
        # The slower of two reports says nothing about their host.
        await report(5, "late", SECOND)
        (again,) = await hosts()
        await report(3, "fast", 0 * SECOND)

        assert (one.severity, one.lasting, one.subject) == (Severity.WARNING, False, ("fast",))
        assert one.what == "the clock of fast is 6 s ahead of the store's"
        assert one.evidence == (
            f"worker fast/3 reported at {moment(at + 6 * SECOND)} by its own clock, and at {moment(at)} by the store's"
        )
        assert both.subject == ("fast", "late")
        assert both.what == "clocks differ from the store's: late (1 min behind), fast (6 s ahead)"
        assert again.subject == ("fast",)
        assert await hosts() == []

    async def test_the_clock_of_a_worker_that_is_gone_is_not_told(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.report(a_report(state={"clock": (clock.now() + HOUR).isoformat()}))
        before = await found(store, Code.CLOCK_SKEW, Thresholds())
        clock.advance(MINUTE)

        after = await found(store, Code.CLOCK_SKEW, Thresholds())
        assert [each.subject for each in before if each.subject] == [("host-1",)]
        assert [each.subject for each in after if each.subject] == []

    async def test_a_store_in_order_gives_no_warning(self, store: FullStore) -> None:
        await store.report(a_report())
        await store.publish(message())

        findings = await diagnose(store, CALM)

        assert [each for each in findings if each.code.partition("-")[0] not in _SERVERS] == []

    async def test_the_worst_comes_first(self, store: FullStore) -> None:
        await bury(store, message())
        await store.publish(message())
        await store.pause(QUEUE, by="host-1/77", until=MINUTE, automatic=True)

        findings = await diagnose(store, CALM)

        assert [each.severity for each in findings] == sorted(
            (each.severity for each in findings), reverse=True
        )
        assert {each.code for each in findings} >= {
            Code.NO_WORKER,
            Code.BREAKER_OPEN,
            Code.DEAD_LETTERS_WAITING,
        }


_SERVERS = ("postgres", "mysql", "redis", "sqlite", "connection")
"""Findings about a server are not a matter of the contract: a test server may have some."""
