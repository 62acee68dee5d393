"""What the commands do, on whatever store: inherit, and give a `url`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from nightmail.cli.tail import Followed
from nightmail.message import Message
from nightmail.outcome import Dead, Retry
from nightmail.records import DeadFilter
from nightmail.store import FullStore, Settlement
from nightmail.testing.conformance.build import LEASE
from tests.cli.support import bury, migrated, nightmail, on_store, publish

MINUTE = timedelta(minutes=1)


def dead(url: str) -> int:
    """How many dead letters there are."""
    return on_store(url, lambda store: store.summarize_dead(DeadFilter())).count


def meanwhile(monkeypatch: pytest.MonkeyPatch, module: str, work: Callable[[], object]) -> list[str]:
    """Let this happen while the command waits for an answer, which is yes; what it asked."""
    asked: list[str] = []

    def answer(what: str, *, yes: bool) -> None:
        asked.append(what)
        # In a thread: the command's event loop runs in this one.
        with ThreadPoolExecutor(1) as other:
            other.submit(work).result()

    monkeypatch.setattr(f"nightmail.cli.{module}.confirm", answer)
    return asked


class CommandsOnAStore:
    """The commands, on a real server."""

    @pytest.fixture
    def url(self) -> str:
        """A store without tables."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, url: str) -> str:
        """The URL of a store that can be used."""
        return migrated(url)

    # ------------------------------------------------------------------------------------------ schema

    def test_migrate_says_what_it_will_do_and_does_it_once(self, url: str) -> None:
        missing = nightmail("check", url=url)
        planned = nightmail("migrate", "--dry-run", url=url)
        still = nightmail("check", url=url)
        made = nightmail("migrate", url=url)
        again = nightmail("migrate", url=url)

        assert (missing.code, planned.code, still.code, made.code, again.code) == (4, 4, 4, 0, 0)
        assert "`nightmail migrate`" in missing.refusal
        assert "will be created" in planned.out
        assert "up to date" not in planned.out
        assert ["will be created" in line for line in made.out.splitlines()] == [True, False]
        assert "nothing to do" in again.out
        assert nightmail("check", url=url).code == 0
        told = nightmail("check", "--json", url=url)
        assert (told.code, told.answer["differences"]) == (0, [])

    def test_check_tells_a_script_what_is_wrong(self, url: str) -> None:
        told = nightmail("check", "--json", url=url)

        (difference,) = told.answer["differences"]
        assert (told.code, "nightmail migrate" in difference, told.err) == (4, True, "")

    @pytest.mark.parametrize(
        "command",
        [
            ["status", "--over", "0"],
            ["list"],
            ["show", "1"],
            ["publish", "orders", "7"],
            ["cancel", "orders", "t"],
            ["reschedule", "orders", "t", "--in", "5m"],
            ["tail"],
            ["dead", "list"],
            ["dead", "show", "1"],
            ["dead", "groups"],
            ["dead", "redrive", "orders", "--yes"],
            ["dead", "purge", "orders", "--yes"],
            ["bench"],
        ],
        ids=lambda command: " ".join(command[:2]),
    )
    def test_without_tables_every_command_says_how_to_make_them(self, url: str, command: list[str]) -> None:
        ran = nightmail(*command, url=url)

        assert ran.code == 4
        assert "`nightmail migrate`" in ran.refusal

    # ------------------------------------------------------------------------------------------- look

    def test_status_counts_what_is_ready_scheduled_running_and_dead(self, store: str) -> None:
        bury(store, "ValueError: no")
        publish(
            store,
            Message(queue="orders", body=b"ready"),
            Message(queue="orders", body=b"later", due=MINUTE),
            Message(queue="mail", body=b"later", due=MINUTE),
        )

        ran = nightmail("status", "--over", "0", url=store)
        told = nightmail("status", "--over", "100ms", "--json", "orders", "empty", url=store)

        assert ran.code == told.code == 0
        mail, orders = ran.rows
        assert mail == ["mail", "0", "1", "0", "0", "-", "-", "-", "0", "-", "-", "-"]
        assert orders[:5] == ["orders", "1", "1", "0", "1"]
        assert orders[5] != "-"
        empty, same = told.answer
        assert (empty["queue"], empty["ready"]) == ("empty", 0)
        assert (same["ready"], same["scheduled"], same["dead"]) == (1, 1, 1)
        assert same["oldest_due_age"] > 0
        assert (same["lateness"], same["workers"]) == (None, 0)
        assert (same["in_per_second"], same["out_per_second"]) == (0.0, 0.0)
        assert (same["change_per_second"], same["drained_in"]) == (0.0, None)

    def test_what_waits_is_listed_page_by_page_without_its_body(self, store: str) -> None:
        first, second, third = publish(
            store,
            Message(queue="orders", body=b"secret tea", headers={"who": "me"}),
            Message(queue="orders", body=b"x", timer_id="t-1", due=MINUTE, priority=3, ordering_key="k"),
            Message(queue="mail", body=b"y", due=2 * MINUTE),
        )

        page = nightmail("list", "--limit", "2", url=store)
        cursor = page.err.split("--after ")[1].split(";")[0]
        rest = nightmail("list", "--after", cursor, url=store)
        shown = nightmail("list", "orders", "--body", "--json", "--limit", "1", url=store)

        assert [row[0] for row in page.rows] == [str(first), str(second)]
        assert page.rows[1][1] == "orders"
        assert page.rows[1][3:] == ["3", "0", "t-1", "k", "1"]
        assert "secret tea" not in page.out
        assert [row[0] for row in rest.rows] == [str(third)]
        (only,) = shown.answer
        assert (only["id"], only["body"], only["headers"]) == (str(first), "secret tea", {"who": "me"})
        hidden = nightmail("list", "orders", "--json", "--limit", "1", url=store)
        assert "secret" not in hidden.out
        assert hidden.answer[0]["body_bytes"] == 10
        assert [row[0] for row in nightmail("list", "--due-within", "0s", url=store).rows] == [str(first)]
        assert [row[0] for row in nightmail("list", "orders", "--timer-id", "t-1", url=store).rows] == [
            str(second)
        ]
        assert nightmail("list", "empty", url=store).err == "nothing waits there\n"

    def test_a_message_is_shown_by_its_id_whatever_its_state(self, store: str) -> None:
        async def states(store: FullStore) -> tuple[int, int, int]:
            waiting = await store.publish(Message(queue="orders", body=b"secret tea", due=MINUTE))
            failed = await store.publish(Message(queue="mail", body=b"x"))
            (delivery,) = (await store.claim(["mail"], limit=1, lease=LEASE, token=uuid4())).deliveries
            await store.settle([Settlement(delivery, Retry(MINUTE, "TimeoutError('10 s')"))])
            running = await store.publish(Message(queue="mail", body=b"y"))
            await store.claim(["mail"], limit=1, lease=LEASE, token=uuid4())
            assert waiting is not None
            assert failed is not None
            assert running is not None
            return waiting, failed, running

        waiting, failed, running = on_store(store, states)

        shown = dict(line.split("\t") for line in nightmail("show", str(waiting), url=store).out.splitlines())
        assert (shown["message"], shown["queue"], shown["state"]) == (str(waiting), "orders", "scheduled")
        assert shown["due"].startswith("in ")
        assert shown["due"].endswith("Z)")
        assert shown["body"] == "10 bytes (--body shows it)"
        assert "secret tea" in nightmail("show", str(waiting), "--body", url=store).out
        assert "state\trunning, leased until in " in nightmail("show", str(running), url=store).out
        (told,) = nightmail("show", str(failed), "--json", url=store).answer
        assert (told["kind"], told["attempts"], told["running"]) == ("message", 1, False)
        assert told["last_error"] == "TimeoutError('10 s')"
        assert "last error\tTimeoutError('10 s')\n" in nightmail("show", str(failed), url=store).out
        assert "last error" not in shown
        said = nightmail("why", str(failed), url=store).out.splitlines()[0]
        assert said.startswith("attempt 2 is due in ")
        assert said.endswith("Z), last error TimeoutError('10 s')")
        (due, *_) = nightmail("why", str(failed), "--json", url=store).answer
        assert (due["kind"], due["last_error"]) == ("due_later", "TimeoutError('10 s')")

    def test_an_unknown_id_is_not_found(self, store: str) -> None:
        for command in (
            ["show", "123456"],
            ["dead", "show", "123456"],
            ["dead", "redrive", "--id", "123456"],
            ["dead", "redrive", "--id", "123456", "--yes"],
            ["dead", "purge", "--id", "123456"],
            ["dead", "purge", "--id", "123456", "--yes"],
        ):
            ran = nightmail(*command, url=store)
            assert ran.code == 6, command
            assert "123456" in ran.refusal
            assert "`nightmail dead list`" in ran.refusal

    def test_dead_letters_that_are_there_are_taken_though_another_id_is_unknown(self, store: str) -> None:
        bury(store, "ValueError: no")
        (letter,) = on_store(store, lambda opened: opened.dead(DeadFilter()))

        other = nightmail("dead", "purge", "--id", str(letter.id), "--error", "KeyError", "--yes", url=store)
        purged = nightmail("dead", "purge", "--id", str(letter.id), "--id", "123456", "--yes", url=store)

        assert other.code == 6
        assert (purged.code, purged.out.splitlines()[-1]) == (0, "1 deleted")
        assert nightmail("dead", "purge", "orders", "--yes", url=store).code == 0

    # ------------------------------------------------------------------------------------------ change

    def test_a_message_is_published_as_a_broker_would(self, store: str) -> None:
        ran = nightmail(
            "publish", "orders", '{"id": 7}', "--in", "5m", "--timer-id", "t", "--header", "who=me", "--priority", "9",
            "--ordering-key", "k", "--expires-in", "1h", url=store,
        )  # fmt: skip

        (message,) = on_store(store, lambda opened: opened.peek())
        assert ran.out == f"{message.id}\n"
        assert (message.body, message.timer_id) == (b'{"id": 7}', "t")
        assert message.headers == {"content-type": "application/json", "who": "me"}
        assert (message.priority, message.ordering_key) == (9, "k")
        assert message.due_at - message.published_at == 5 * MINUTE
        assert message.expires_at == message.published_at + 60 * MINUTE

        taken = nightmail("publish", "orders", "8", "--timer-id", "t", url=store)
        assert (taken.code, taken.out) == (1, "")
        assert "--on-conflict" in taken.err
        replaced = nightmail(
            "publish", "orders", "-", "--timer-id", "t", "--on-conflict", "replace", url=store, typed="hi"
        )
        assert replaced.code == 0
        (message,) = on_store(store, lambda opened: opened.peek())
        assert (message.body, message.headers) == (b"hi", {"content-type": "text/plain"})

    def test_a_timer_is_moved_and_cancelled_by_its_id(self, store: str) -> None:
        publish(store, Message(queue="orders", body=b"x", timer_id="t", due=MINUTE))
        at = datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC)

        moved = nightmail("reschedule", "orders", "t", "--at", "2040-01-02T04:04:05+01:00", url=store)
        (message,) = on_store(store, lambda opened: opened.peek())
        cancelled = nightmail("cancel", "orders", "t", url=store)

        assert (moved.code, message.due_at, cancelled.code) == (0, at, 0)
        assert on_store(store, lambda opened: opened.peek()) == []
        for command in (["cancel", "orders", "t"], ["reschedule", "orders", "t", "--in", "1s"]):
            ran = nightmail(*command, url=store)
            assert ran.code == 6
            assert "`nightmail list orders`" in ran.refusal

    def test_a_queue_is_emptied_only_on_purpose(self, store: str) -> None:
        publish(store, *(Message(queue="orders", body=b"x") for _ in range(3)))

        asked = nightmail("cancel", "orders", "--everything", url=store)
        assert asked.code == 7
        assert "remove 3 waiting messages of orders" in asked.refusal
        assert "--yes" in asked.refusal
        assert nightmail("cancel", "orders", "--everything", "--yes", url=store).out == "3 removed\n"
        assert (
            nightmail("cancel", "orders", "--everything", "--yes", url=store).out
            == "nothing waits in orders\n"
        )

    def test_no_more_is_removed_than_was_agreed_to_though_more_is_published_meanwhile(
        self, store: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish(store, *(Message(queue="orders", body=b"old") for _ in range(3)))
        new = Message(queue="orders", body=b"new", due=MINUTE)
        asked = meanwhile(monkeypatch, "timers", lambda: publish(store, new, new))

        ran = nightmail("cancel", "orders", "--everything", url=store)

        assert (ran.code, ran.out) == (0, "3 removed\n")
        assert asked == ["remove 3 waiting messages of orders, for good"]
        assert len(on_store(store, lambda opened: opened.peek())) == 2

    # ------------------------------------------------------------------------------------- dead letters

    def test_dead_letters_are_listed_shown_and_grouped(self, store: str) -> None:
        bury(store, "TimeoutError('10.0.0.1')", "TimeoutError('10.0.0.2')", "KeyError('tea')")
        bury(store, None, queue="mail", reason="expired")

        listed = nightmail("dead", "list", "orders", "--limit", "2", url=store)
        before = listed.err.split("--before ")[1].split(";")[0]
        rest = nightmail("dead", "list", "orders", "--before", before, url=store)
        grouped = nightmail("dead", "groups", url=store)

        assert [row[5] for row in listed.rows + rest.rows] == [
            "KeyError('tea')",
            "TimeoutError('10.0.0.2')",
            "TimeoutError('10.0.0.1')",
        ]
        assert "secret" not in listed.out
        assert grouped.rows[0][:4] == ["2", "orders", "rejected", "TimeoutError('#.#.#.#')"]
        assert sorted(row[3] for row in grouped.rows[1:]) == ["-", "KeyError('tea')"]
        example = grouped.rows[0][5]
        shown = nightmail("dead", "show", example, "--body", url=store).out
        assert "error\tTimeoutError('10.0.0.2')\n" in shown
        assert "body\tsecret tea\n" in shown
        assert "dead letter\t" in nightmail("show", example, url=store).out
        told = nightmail("dead", "groups", "--json", "--limit", "1", url=store).answer
        assert (told["count"], [group["count"] for group in told["groups"]]) == (4, [2])
        assert (
            nightmail("dead", "list", "--error", "nothing like it", url=store).err == "no such dead letters\n"
        )

    def test_a_redrive_shows_what_it_will_do_and_moves_that(self, store: str) -> None:
        bury(store, *(f"TimeoutError({number})" for number in range(5)), "KeyError('tea')")

        preview = nightmail("dead", "redrive", "--error", "Timeout", "--dry-run", url=store)
        refused = nightmail("dead", "redrive", "--error", "Timeout", url=store)
        some = nightmail(
            "dead", "redrive", "orders", "--error", "Timeout", "--limit", "2", "--yes", url=store
        )
        rest = nightmail(
            "dead", "redrive", "--error", "Timeout", "--to", "again", "--rate", "100", "--yes", url=store
        )

        assert preview.rows[0][:4] == ["5", "orders", "rejected", "TimeoutError(#)"]
        assert (preview.code, refused.code) == (0, 7)
        assert "send 5 dead letters to where they died" in refused.err
        assert "of these 5, the oldest 2" in some.err
        assert some.out.endswith("2 sent round again\n")
        assert rest.out.endswith("3 sent round again\n")
        stats = on_store(store, lambda opened: opened.stats())
        assert (stats["orders"].ready, stats["again"].ready, stats["orders"].dead) == (2, 3, 1)

    def test_letters_that_cannot_move_are_counted(self, store: str) -> None:
        bury(store, "no", timer_id="t")
        publish(store, Message(queue="orders", body=b"x", timer_id="t"))

        stays = nightmail("dead", "redrive", "orders", "--yes", url=store)
        goes = nightmail("dead", "redrive", "orders", "--yes", "--drop-timer-ids", url=store)

        assert stays.code == 1
        assert "--drop-timer-ids" in stays.err
        assert goes.code == 0
        assert dead(store) == 0

    def test_a_purge_deletes_what_the_filter_names_after_it_was_confirmed(self, store: str) -> None:
        bury(store, "KeyError('tea')", "KeyError('tea')", "ValueError('no')")

        refused = nightmail("dead", "purge", "--error", "KeyError", url=store)
        assert (refused.code, dead(store)) == (7, 3)
        assert "delete 2 dead letters for good" in refused.err
        assert (
            nightmail("dead", "purge", "--older-than", "1h", "--yes", url=store).err
            == "no such dead letters\n"
        )
        deleted = nightmail("dead", "purge", "--error", "KeyError", "--yes", url=store)
        assert deleted.out.endswith("2 deleted\n")
        everything = nightmail("dead", "purge", "--reason", "rejected", "--dry-run", url=store)
        assert "that is all there are in the store: 1" in everything.err
        assert nightmail("dead", "purge", "--everything", "--yes", url=store).out.endswith("1 deleted\n")
        assert dead(store) == 0

    @pytest.mark.parametrize("command", ["redrive", "purge"])
    def test_no_more_dead_letters_are_taken_than_were_shown_though_more_die_meanwhile(
        self, store: str, command: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bury(store, "old 1", "old 2")
        asked = meanwhile(monkeypatch, "dead", lambda: bury(store, "new 1", "new 2"))

        ran = nightmail("dead", command, "orders", url=store)

        assert ran.code == 0, ran.err
        assert len(asked) == 1
        assert "2 dead letters" in asked[0]
        left = on_store(store, lambda opened: opened.dead(DeadFilter()))
        assert [letter.error for letter in left] == ["new 2", "new 1"]

    def test_a_preview_shows_some_of_the_letters_without_their_bodies(self, store: str) -> None:
        bury(
            store,
            "TimeoutError('10.0.0.1')\n  at line 7",
            "TimeoutError('10.0.0.2')\n  at line 7",
            "KeyError",
        )
        timeout, key = (
            letter.id for letter in on_store(store, lambda opened: opened.dead(DeadFilter()))[1::-1]
        )

        for command in ("redrive", "purge"):
            ran = nightmail("dead", command, "orders", "--dry-run", url=store)

            rows = ran.rows
            heading = rows.index(["for example", "queue", "died", "error"])
            assert len(rows[:heading]) == 2
            assert [[row[0], row[1], row[3]] for row in rows[heading + 1 :]] == [
                [str(timeout), "orders", "TimeoutError('10.0.0.2')"],
                [str(key), "orders", "KeyError"],
            ]
            assert all(" ago (" in row[2] for row in rows[heading + 1 :])
            assert "secret" not in ran.out

    def test_letters_are_chosen_by_id(self, store: str) -> None:
        bury(store, "a", "b", "c")
        ids = [row[0] for row in nightmail("dead", "list", url=store).rows]

        nightmail("dead", "purge", "--id", ids[0], "--id", ids[2], "--yes", url=store)

        assert [row[0] for row in nightmail("dead", "list", url=store).rows] == [ids[1]]

    # ------------------------------------------------------------------------------------------- bench

    def test_a_benchmark_measures_and_leaves_nothing(self, store: str) -> None:
        publish(store, Message(queue="orders", body=b"mine"))

        ran = nightmail("bench", "--messages", "150", "--size", "10", "--json", url=store)

        assert ran.code == 0, ran.err
        assert (ran.answer["messages"], ran.answer["body_bytes"]) == (150, 10)
        for name in ("publish_seconds", "published_per_second", "handled_per_second", "delivery_seconds"):
            assert ran.answer[name] > 0
        assert list(on_store(store, lambda opened: opened.stats())) == ["orders"]

    # ------------------------------------------------------------------------------- texts of messages

    def test_nothing_in_a_message_can_move_the_cursor(self, store: str) -> None:
        hostile = "\x1b]0;owned\x07\x1b[2J\nnew\tline\r\u202e\x9b31m[red]"
        publish(
            store,
            Message(
                queue=hostile,
                body=hostile.encode(),
                headers={hostile: hostile},
                timer_id=hostile,
                ordering_key=hostile,
            ),
        )

        async def fail(opened: FullStore) -> None:
            (delivery,) = (await opened.claim([hostile], limit=1, lease=LEASE, token=uuid4())).deliveries
            await opened.settle([Settlement(delivery, Retry(MINUTE, hostile))])

        on_store(store, fail)
        bury(store, hostile, queue=f"dead {hostile}", reason=hostile, headers={"a": hostile})
        (waiting,) = on_store(store, lambda opened: opened.peek())
        (letter,) = on_store(store, lambda opened: opened.dead(DeadFilter()))

        for command in (
            ["status", "--over", "0"],
            ["list", "--body"],
            ["list", "--json", "--body"],
            ["show", str(waiting.id), "--body"],
            ["why", str(waiting.id)],
            ["dead", "list", "--body"],
            ["dead", "show", str(letter.id), "--body"],
            ["dead", "groups"],
            ["dead", "groups", "--json"],
            ["dead", "purge", "--everything", "--dry-run"],
            ["cancel", hostile, "no such timer"],
            ["cancel", "orders", hostile],
            ["list", hostile],
        ):
            ran = nightmail(*command, url=store)
            said = ran.out + ran.err
            assert all(each.isprintable() or each in "\t\n" for each in said), (command, said)
        # Nor does it begin a line of its own, or a column.
        assert len(nightmail("list", "--body", url=store).rows) == 1
        assert len(nightmail("list", "--body", url=store).rows[0]) == 10
        assert len(nightmail("dead", "list", url=store).rows[0]) == 6
        assert (
            len(nightmail("dead", "show", str(letter.id), "--body", url=store).out.splitlines())
            == len(nightmail("dead", "show", str(letter.id), url=store).out.splitlines()) + 1
        )
        # JSON keeps it, escaped.
        assert nightmail("list", "--json", url=store).answer[0]["timer_id"] == hostile

    # -------------------------------------------------------------------------------------------- tail

    def test_following_shows_each_message_once_and_again_when_it_is_due_again(self, store: str) -> None:
        async def follow(opened: FullStore) -> list[list[str]]:
            await opened.publish(Message(queue="orders", body=b"old"))
            followed = Followed(opened, None, only_dead=False)
            await followed.begin()
            looks = [await followed.look()]
            await opened.publish(Message(queue="orders", body=b"new"))
            await opened.publish(Message(queue="orders", body=b"later", due=MINUTE))
            looks += [await followed.look(), await followed.look()]
            claimed = await opened.claim(["orders"], limit=9, lease=LEASE, token=uuid4())
            old, new = claimed.deliveries
            await opened.settle([Settlement(old, Retry()), Settlement(new, Dead("rejected"))])
            looks += [await followed.look(), await followed.look()]
            return [
                [f"{type(each).__name__} {each.body.decode()} {each.attempts}" for each in look]
                for look in looks
            ]

        assert on_store(store, follow) == [
            [],
            ["PendingMessage new 0"],
            [],
            ["PendingMessage old 1", "DeadLetter new 1"],
            [],
        ]

    def test_more_dead_letters_than_fit_on_a_page_are_followed(self, store: str) -> None:
        async def follow(opened: FullStore) -> list[bytes]:
            followed = Followed(opened, "orders", only_dead=True)
            await followed.begin()
            await opened.publish_batch(
                [Message(queue="orders", body=b"%02d" % number) for number in range(45)]
            )
            claimed = await opened.claim(["orders"], limit=50, lease=LEASE, token=uuid4())
            await opened.settle([Settlement(each, Dead("rejected")) for each in claimed.deliveries])
            return [each.body for each in await followed.look()]

        assert sorted(on_store(store, follow)) == [b"%02d" % number for number in range(45)]
