"""Pauses, workers, `why` and `doctor` from the command line, on whatever store: inherit, and give a `url`."""

from __future__ import annotations

import getpass
import re
import shlex
import socket
from datetime import timedelta

import pytest

from nightmail.cli import commands, dead
from nightmail.findings import Code
from nightmail.message import Message
from nightmail.outcome import Done
from nightmail.records import DeadFilter
from nightmail.store import FullStore, Settlement
from nightmail.testing.conformance.build import LEASE
from nightmail.testing.conformance.workers import FIRST, a_report, token_of
from tests.cli.support import bury, migrated, nightmail, on_store, publish

HOUR = timedelta(hours=1)
DEAD_LETTERS_LOOK = ("list", "show", "groups")


def an_order(**options: object) -> Message:
    return Message(queue="orders", body=b"secret tea", **options)  # type: ignore[arg-type]


class OperatingOnAStore:
    """What an operator orders and asks, on a real server."""

    @pytest.fixture
    def url(self) -> str:
        """A store without tables."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, url: str) -> str:
        """The URL of a store that can be used."""
        return migrated(url)

    @pytest.mark.parametrize(
        "command",
        [["why", "1"], ["workers"], ["pauses"], ["pause", "q"], ["resume", "q"], ["stop", "1"]],
        ids=lambda command: command[0],
    )
    def test_without_tables_they_say_how_to_make_them(self, url: str, command: list[str]) -> None:
        ran = nightmail(*command, url=url)

        assert ran.code == 4
        assert "`nightmail migrate`" in ran.refusal

    # ------------------------------------------------------------------------------------------ pauses

    def test_a_queue_is_paused_shown_as_paused_and_resumed(self, store: str) -> None:
        publish(store, an_order())

        paused = nightmail("pause", "orders", "--reason", "provider down", "--by", "ann", url=store)
        claimed = on_store(store, self._claim)
        listed = nightmail("pauses", url=store)
        status = nightmail("status", "--over", "0", url=store)
        resumed = nightmail("resume", "orders", url=store)

        assert (paused.code, paused.out) == (0, "orders is paused until you resume it\n")
        assert "1 message ready in the queue, 0 messages still running" in paused.err
        assert "`nightmail resume orders`" in paused.err
        assert claimed == 0
        (row,) = listed.rows
        assert (row[:3], row[4:]) == (["orders", "-", "ann"], ["resumed", "provider down"])
        assert status.rows[0][-1] == "by ann"
        assert (resumed.code, resumed.out, resumed.err) == (0, "orders is resumed\n", "")
        assert on_store(store, self._claim) == 1
        assert nightmail("pauses", url=store).err == "nothing is paused\n"

    async def _claim(self, store: FullStore) -> int:
        claimed = await store.claim(["orders"], limit=9, lease=LEASE, token=token_of(FIRST, 1))
        return len(claimed.deliveries)

    def test_a_queue_that_no_one_knows_is_paused_with_a_question(self, store: str) -> None:
        publish(store, Message(queue="orders", body=b"x"))

        known = nightmail("pause", "orders", url=store)
        unknown = nightmail("pause", "odrers", url=store)

        assert "is its name right?" not in known.err
        assert (unknown.code, unknown.out) == (0, "odrers is paused until you resume it\n")
        assert "nothing is in odrers, and no worker was seen that consumes it" in unknown.err

    def test_a_pause_has_an_end_a_key_and_the_name_of_who_gave_it(self, store: str) -> None:
        publish(store, an_order(ordering_key="acct-7"), an_order(ordering_key="acct-8"))

        ran = nightmail("pause", "orders", "--key", "acct-7", "--for", "1h", url=store)
        (told,) = nightmail("pauses", "--json", url=store).answer
        (status,) = nightmail("status", "--over", "0", "--json", url=store).answer

        assert ran.out.startswith("ordering key acct-7 of orders is paused until 20")
        assert (told["queue"], told["ordering_key"], told["automatic"]) == ("orders", "acct-7", False)
        assert told["by"] == f"{getpass.getuser()}@{socket.gethostname()}"
        assert status["pauses"] == [told]
        assert nightmail("status", "--over", "0", url=store).rows[0][-1] == "1 key"
        wrong = nightmail("resume", "orders", url=store)
        assert wrong.code == 6
        assert "orders is not paused, but some of its ordering keys are: --key KEY" in wrong.refusal
        assert nightmail("resume", "orders", "--key", "acct-7", url=store).code == 0

    @pytest.mark.parametrize(("queue", "key"), [("a b;c", "it's"), ("-x", "--y")])
    def test_a_command_that_is_suggested_can_be_pasted_into_a_shell(
        self, store: str, queue: str, key: str
    ) -> None:
        paused = nightmail("pause", "--key", key, "--", queue, url=store)
        gone = nightmail("cancel", "--", queue, "t", url=store)

        assert (paused.code, gone.code) == (0, 6)
        (resume,) = re.findall("`([^`]* resume [^`]*)`", paused.err)
        (listing,) = re.findall("`([^`]* list [^`]*)`", gone.refusal)
        assert nightmail(*shlex.split(resume)[1:], url=store).out == (
            f"ordering key {key} of {queue} is resumed\n"
        )
        assert nightmail(*shlex.split(listing)[1:], url=store).err == "nothing waits there\n"

    def test_a_breaker_is_closed_only_when_it_is_meant(self, store: str) -> None:
        on_store(
            store,
            lambda opened: opened.pause(
                "orders", by="host-1/77", reason="20 failures", until=HOUR, automatic=True
            ),
        )

        (row,) = nightmail("pauses", url=store).rows
        status = nightmail("status", "--over", "0", url=store)
        refused = nightmail("resume", "orders", url=store)
        closed = nightmail("resume", "orders", "--breaker", url=store)

        assert row[2] == "the breaker of host-1/77"
        assert row[4].startswith("a try in ")
        assert status.rows[0][0] == "orders"
        assert status.rows[0][-1] == "by its breaker"
        assert refused.code == 6
        assert "its breaker is open: --breaker closes it" in refused.refusal
        assert closed.code == 0

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["pause", ""], "queue"),
            (["pause", "orders", "--for", "1h", "--until", "2040-01-01T00:00:00Z"], "not both"),
            (["pause", "orders", "--until", "2020-01-01T00:00:00Z"], "is over"),
            (["pause", "orders", "--until", "2040-01-01T00:00:00"], "no time zone"),
            (["pause", "orders", "--for", "soon"], "a duration looks like"),
            (["pause", "orders", "--by", ""], "by"),
            (["resume", "orders", "--breaker", "--key", "k"], "not both"),
            (["why", "--", "-1"], "no id"),
            (["stop", str(2**63)], "no id"),
        ],
    )
    def test_what_cannot_be_is_refused_before_anything_is_written(
        self, store: str, arguments: list[str], said: str
    ) -> None:
        ran = nightmail(*arguments, url=store)

        assert ran.code == 2
        assert said in ran.err
        assert on_store(store, lambda opened: opened.pauses()) == []

    # ----------------------------------------------------------------------------------- workers, stop

    def test_workers_are_shown_with_what_they_hold_and_one_is_asked_to_stop(self, store: str) -> None:
        (id_,) = publish(store, an_order())
        none_yet = nightmail("workers", url=store)

        async def work(opened: FullStore) -> None:
            said = {
                "queues": ["orders", "mail"],
                "max_workers": 10,
                "running": 3,
                "late_seconds": {"orders": 2.5},
            }
            await opened.report(a_report(queues=("orders", "mail"), state={"subscribers": [said]}))
            await opened.claim(["orders"], limit=1, lease=HOUR, token=token_of(FIRST, 1))

        on_store(store, work)
        (row,) = nightmail("workers", url=store).rows
        (told,) = nightmail("workers", "--json", url=store).answer["workers"]
        status = nightmail("status", "orders", "--over", "0", url=store)
        (queue,) = nightmail("status", "orders", "--over", "0", "--json", url=store).answer
        stopped = nightmail("stop", str(id_), "--by", "ann", url=store)
        why = nightmail("why", str(id_), url=store)

        assert none_yet.err.startswith("no worker is running: none has been seen within 90 days. ")
        assert row[:4] == ["host-1", "77", "live", "1.2.3"]
        assert row[5:8] == ["orders, mail", "3 of 10", "1"]
        assert row[8].startswith(f"{id_}, for ")
        assert (told["live"], told["queues"], told["leases"][0]["id"]) == (True, ["orders", "mail"], str(id_))
        assert status.out.splitlines()[0].split("\t")[5:7] == ["oldest due", "lateness"]
        assert status.rows[0][5:7] == ["-", "2 s"]
        assert (queue["oldest_due_age"], queue["lateness"], queue["workers"]) == (None, 2.5, 1)
        assert stopped.out == f"host-1/77 is asked to stop message {id_}\n"
        held, stopping = why.out.splitlines()
        assert held.startswith("attempt 1 is with host-1/77 for ")
        assert stopping.startswith("ann asked for it to be stopped")

    def test_workers_says_which_was_seen_last_where_none_is_running(self, store: str) -> None:
        async def work(opened: FullStore) -> None:
            await opened.report(a_report(host="host-2", queues=("mail",)))
            await opened.sign_off(FIRST)

        on_store(store, work)
        ran = nightmail("workers", url=store)
        told = nightmail("workers", "--json", url=store).answer

        assert re.match(
            r"no worker is running: the last one was seen .+ ago, host-2/77, which consumed mail\. Does the",
            ran.err,
        )
        assert (ran.code, ran.out) == (0, "")
        (last,) = told["last_consumers"]
        assert (told["workers"], last["queue"], last["host"], last["pid"]) == ([], "mail", "host-2", 77)
        assert last["seen_at"].endswith("Z")

    def test_what_does_not_run_cannot_be_stopped(self, store: str) -> None:
        (id_,) = publish(store, an_order())

        ran = nightmail("stop", str(id_), url=store)

        assert ran.code == 6
        assert f"message {id_} does not run. `nightmail why {id_}`" in ran.refusal

    # --------------------------------------------------------------------------------------------- why

    def test_why_says_all_that_holds_a_message_back(self, store: str) -> None:
        (id_,) = publish(store, an_order(due=2 * HOUR))
        nightmail("pause", "orders", "--by", "ann", url=store)

        ran = nightmail("why", str(id_), url=store)
        told = nightmail("why", str(id_), "--json", url=store).answer
        unknown = nightmail("why", "4711", url=store)

        due, paused, unattended = ran.out.splitlines()
        assert due.startswith("due in 1 h 59 min")
        assert paused.startswith("queue orders paused by ann for ")
        assert unattended == "no live worker consumes queue orders: none has been seen within 90 days"
        assert [each["kind"] for each in told] == ["due_later", "paused", "no_worker"]
        assert [each["text"] for each in told][2] == unattended
        assert "secret" not in ran.out
        assert unknown.code == 6
        assert "4711: no message has this id" in unknown.refusal

    def test_why_a_message_died_leads_to_its_dead_letter(self, store: str) -> None:
        bury(store, "TimeoutError: no answer\n  at line 7")
        (letter,) = nightmail("dead", "list", "--json", url=store).answer

        ran = nightmail("why", letter["message_id"], url=store)

        assert "rejected after 1 attempt: TimeoutError: no answer (" in ran.out
        assert f"`nightmail dead show {letter['id']}`" in ran.out
        assert len(ran.out.splitlines()) == 1

    # ------------------------------------------------------------------------------------------ doctor

    def test_doctor_finds_what_is_wrong_and_says_so_by_its_exit_code(self, store: str) -> None:
        well = nightmail("doctor", "--json", url=store)
        publish(store, an_order())
        alone = nightmail("doctor", url=store)
        told = nightmail("doctor", "--json", url=store)
        on_store(store, lambda opened: opened.report(a_report(queues=("orders",))))
        on_store(store, lambda opened: opened.pause("orders", by="h/1", until=HOUR, automatic=True))
        warned = nightmail("doctor", "--json", url=store)

        assert Code.NO_WORKER not in {each["code"] for each in well.answer}
        assert alone.code == told.code == 2
        (row,) = [row for row in alone.rows if row[1] == "no-worker"]
        assert row[0] == "fatal"
        assert row[3].startswith("1 message ready")
        assert row[6].endswith("/docs/runbooks/no-worker.md")
        (finding,) = [each for each in told.answer if each["code"] == "no-worker"]
        assert (finding["severity"], finding["lasting"], finding["runbook"]) == ("fatal", False, row[6])
        assert {each["code"] for each in warned.answer} >= {"breaker-open"}
        assert "no-worker" not in {each["code"] for each in warned.answer}

    def test_doctor_finds_a_forgotten_migration_until_it_is_made(self, url: str) -> None:
        forgotten = nightmail("doctor", "--json", url=url)
        at_boot = nightmail("doctor", "--strict", url=url)
        assert nightmail("migrate", url=url).code == 0
        made = nightmail("doctor", "--json", url=url)

        assert forgotten.code == at_boot.code == 2
        (finding,) = [each for each in forgotten.answer if each["code"] == "schema-missing"]
        assert (finding["severity"], finding["lasting"]) == ("fatal", True)
        assert finding["remedy"].startswith("`nightmail migrate`")
        assert finding["runbook"].endswith("/docs/runbooks/schema-missing.md")
        assert "schema-missing" in {row[1] for row in at_boot.rows}
        # Without tables nothing else is wrong: the server is examined all the same.
        before, after = ({each["code"] for each in ran.answer} for ran in (forgotten, made))
        assert before - after == {"schema-missing"}
        assert after - before == set()

    def test_doctor_at_the_start_of_a_service_ignores_what_passes(self, store: str) -> None:
        publish(store, an_order())

        ran = nightmail("doctor", "--strict", url=store)

        assert "no-worker" not in ran.out

    def test_nothing_that_a_store_says_can_move_the_cursor(self, store: str) -> None:
        hostile = "\x1b]0;owned\x07\x1b[2J\nnew\tline\r\u202e\x9b31m[red]"

        async def work(opened: FullStore) -> int:
            await opened.report(a_report(host=hostile, version=hostile, queues=(hostile,)))
            id_ = await opened.publish(Message(queue=hostile, body=b"x", ordering_key=hostile))
            await opened.pause(hostile, by=hostile, reason=hostile)
            await opened.pause(hostile, ordering_key=hostile, by=hostile, reason=hostile)
            await opened.pause(hostile, by=hostile, reason=hostile, until=HOUR, automatic=True)
            assert id_ is not None
            return id_

        id_ = on_store(store, work)
        bury(store, hostile, reason=hostile)

        for command in (
            ["why", str(id_)],
            ["workers"],
            ["pauses"],
            ["doctor"],
            ["doctor", "--json"],
            ["status", "--over", "0"],
            ["pause", hostile, "--by", hostile, "--reason", hostile],
            ["resume", hostile, "--key", "other"],
            ["resume", hostile],
        ):
            ran = nightmail(*command, url=store)
            said = ran.out + ran.err
            assert all(each.isprintable() or each in "\t\n" for each in said), (command, said)
        assert len(nightmail("why", str(id_), url=store).out.splitlines()) == 2
        assert {len(row) for row in nightmail("pauses", url=store).rows} == {6}
        assert {len(row) for row in nightmail("doctor", url=store).rows} == {7}

    def test_a_message_that_is_done_needs_no_explanation(self, store: str) -> None:
        (id_,) = publish(store, an_order())

        async def work(opened: FullStore) -> None:
            claimed = await opened.claim(["orders"], limit=1, lease=LEASE, token=token_of(FIRST, 1))
            await opened.settle([Settlement(each, Done()) for each in claimed.deliveries])

        on_store(store, work)

        assert "it was delivered, cancelled" in nightmail("why", str(id_), url=store).refusal

    # -------------------------------------------------------------------------------------------- JSON

    def test_every_command_that_looks_answers_in_json(self, store: str) -> None:
        (id_,) = publish(store, an_order())
        bury(store, "no", queue="mail")
        nightmail("pause", "orders", url=store)
        on_store(store, lambda opened: opened.report(a_report(queues=("orders",))))
        (letter,) = on_store(store, lambda opened: opened.dead(DeadFilter()))
        needs = {"show": [str(id_)], "why": [str(id_)], "dead show": [str(letter.id)]}

        looking = [each for each in commands.app.registered_commands if each.rich_help_panel == commands.LOOK]
        looking += [each for each in commands.app.registered_commands if each.name == "check"]
        names = [str(each.name) for each in looking]
        names += [
            f"dead {each.name}" for each in dead.app.registered_commands if each.name in DEAD_LETTERS_LOOK
        ]

        assert {"status", "list", "show", "tail", "why", "workers", "pauses", "doctor", "check"} < set(names)
        for name in names:
            if name == "tail":
                continue  # It never ends: see the terminal.
            ran = nightmail(*name.split(), *needs.get(name, []), "--json", url=store)
            assert ran.code == 0 or name == "doctor", (name, ran.err)
            assert ran.answer, name
