"""Values, limits, retries, what is said of errors, and what stores share."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

_UNIT: Final = "tests/unit"
_CANCELLED: Final = (
    f"{_UNIT}/test_cancelled_verbs.py::"
    "test_the_answer_to_a_cancelled_verb_is_read_by_that_verb_and_by_no_other"
)
_UNCERTAIN: Final = (
    "tests/stores/postgres/test_outages.py::TestLostReplies::"
    "test_a_publish_whose_reply_was_lost_is_uncertain_and_was_sent_once"
)

MUTANTS: Final = (
    Mutant(
        name="a publisher's headers may look like ours",
        why="a publisher forges where a message comes from, and how often it was redriven",
        file="message.py",
        text="encode_headers(without_reserved(self.headers))",
        instead="encode_headers(self.headers)",
        killers=(f"{_UNIT}/test_reserved_headers.py::test_a_publisher_cannot_give_a_header_of_ours",),
    ),
    Mutant(
        name="a name may contain NUL",
        why="Postgres refuses it, and on Redis one ordering key runs into the next",
        file="message.py",
        text='    if "\\x00" in name:',
        instead='    if "\\x00" == name:',
        killers=(f"{_UNIT}/test_message.py::test_what_cannot_be_stored_is_refused",),
    ),
    Mutant(
        name="a delivery shows its token",
        why="who reads a log can end a message that another holds",
        file="message.py",
        text="    token: UUID = field(repr=False)",
        instead="    token: UUID",
        killers=(f"{_UNIT}/test_message.py::test_body_headers_and_token_are_not_shown",),
    ),
    Mutant(
        name="a body of any size is published",
        why="one message fills the memory of every worker",
        file="limits.py",
        text="    if len(message.body) > max_body_bytes:",
        instead="    if len(message.body) > max_body_bytes * 1024:",
        killers=(
            "tests/stores/memory/test_conformance.py::TestMemory::"
            "test_a_body_over_the_limit_is_refused_and_nothing_is_stored",
        ),
    ),
    Mutant(
        name="a claim takes what does not fit",
        why="many large messages at once end the process",
        file="limits.py",
        text="        if self.spent or (size > self._left and not self._first):",
        instead="        if self.spent:",
        killers=(
            "tests/stores/memory/test_conformance.py::TestMemory::"
            "test_a_claim_stops_before_it_has_read_more_bytes_than_it_may",
        ),
    ),
    Mutant(
        name="an error quotes the input",
        why="a payload stands in logs, dead letters and spans",
        file="describing.py",
        text='    if library.startswith("pydantic") and hasattr(error, "errors"):',
        instead='    if library == "pedantic" and hasattr(error, "errors"):',
        killers=(f"{_UNIT}/test_describing.py::test_what_a_library_quotes_of_the_input_is_left_out",),
    ),
    Mutant(
        name="a database's error quotes the row",
        why="a payload stands in logs, dead letters and spans",
        file="describing.py",
        text='    return _ROW.sub("…", text)',
        instead="    return text",
        killers=(f"{_UNIT}/test_describing.py::test_what_a_library_quotes_of_the_input_is_left_out",),
    ),
    Mutant(
        name="a text may begin a line of a log",
        why="a message writes log lines of its own",
        file="describing.py",
        text="    if not text.isprintable():",
        instead="    if not text:",
        killers=(f"{_UNIT}/test_describing.py::test_a_line_is_one_line_and_not_too_long",),
    ),
    Mutant(
        name="the last attempt is not the last",
        why="a message that always fails runs once more than allowed",
        file="retry.py",
        text="delivery.attempt >= self.max_attempts",
        instead="delivery.attempt > self.max_attempts",
        killers=(f"{_UNIT}/test_retry.py::test_a_handler_runs_exactly_as_often_as_allowed",),
    ),
    Mutant(
        name="a long delay overflows",
        why="the retry policy raises, and the message becomes a dead letter",
        file="retry.py",
        text="        except OverflowError:",
        instead="        except ZeroDivisionError:",
        killers=(f"{_UNIT}/test_retry.py::test_no_attempt_number_overflows",),
    ),
    Mutant(
        name="a table prefix is checked at its beginning only",
        why="a prefix with a quote in it is SQL",
        file="stores/shared/table_names.py",
        text="not _PART.fullmatch(part)",
        instead="not _PART.match(part)",
        killers=(f"{_UNIT}/test_sql_files.py::test_what_cannot_name_tables_is_refused",),
    ),
    Mutant(
        name="a URL is shown with its user and password",
        why="the password stands in logs and in the AsyncAPI document",
        file="stores/__init__.py",
        text='    hosts, slash, path = shown.rpartition("@")[2].partition("/")',
        instead='    hosts, slash, path = shown.partition("/")',
        killers=(f"{_UNIT}/test_public_url.py::test_what_is_shown_of_a_url",),
    ),
    Mutant(
        name="a last error of any length is kept",
        why="MySQL refuses the settlement of a message whose error is long, and it runs again and again",
        file="describing.py",
        text="    return one_line(outcome.error[: REASON_LIMIT + 1], REASON_LIMIT)",
        instead="    return outcome.error",
        killers=(
            "tests/stores/memory/test_conformance.py::TestMemory::"
            "test_a_last_error_is_one_line_of_at_most_255_characters",
        ),
    ),
    Mutant(
        name="a close that is given up drops no connection",
        why="a service that runs out of time to stop leaves connections at the server",
        file="stores/shared/server_store.py",
        text="                opened.terminate()",
        instead="                pass",
        killers=(
            "tests/stores/redis/test_connections.py::TestConnections::"
            "test_a_close_that_is_given_up_leaves_no_connection_and_no_thread_behind",
        ),
    ),
    Mutant(
        name="no look goes behind the marks",
        why="a message whose transaction was committed late is not delivered while its queue is busy",
        file="stores/shared/marks.py",
        text="        return last is None or now < last or now - last >= ",
        instead="        return last is None or now < last or now - last >= 1e9 * ",
        killers=(f"{_UNIT}/test_marks.py::test_once_a_second_the_look_goes_from_end_to_end",),
    ),
    Mutant(
        name="a connection is used again after a cancelled verb",
        why="a caller reads the answer to another one's question",
        file="stores/shared/lane.py",
        text="        task = asyncio.create_task(self._run(work, lost))\n"
        "        task.add_done_callback(forget_error)\n"
        "        self._task = task\n"
        "        return await asyncio.shield(task)\n",
        instead="        try:\n            return await work(await self._usable())\n"
        "        finally:\n            self._free.release()\n",
        killers=(_CANCELLED,),
    ),
    Mutant(
        name="a cancelled caller cuts its verb off",
        why="messages are leased that no worker has, and wait until their lease ends",
        file="stores/shared/lane.py",
        text="        return await asyncio.shield(task)\n",
        instead="        return await task\n",
        killers=(_CANCELLED,),
    ),
    Mutant(
        name="publishes in one commit that were perhaps stored count as not stored",
        why="the caller publishes again, and the message is there twice",
        file="stores/shared/coalescing.py",
        text="lost=PublishUncertain, here=True",
        instead="lost=StoreUnavailable, here=True",
        killers=(
            "tests/stores/postgres/test_outages.py::TestLostReplies::"
            "test_publishers_that_shared_a_commit_are_each_told_that_it_is_uncertain",
        ),
    ),
    Mutant(
        name="a publish that was perhaps stored counts as not stored",
        why="the caller publishes again, and the message is there twice",
        file="stores/sql/store.py",
        text="None, lost=PublishUncertain, timer=True",
        instead="None, lost=StoreUnavailable, timer=True",
        killers=(
            "tests/stores/postgres/test_outages.py::TestLostReplies::"
            "test_a_publish_whose_reply_was_lost_is_uncertain_and_was_sent_once",
        ),
    ),
    Mutant(
        name="a batch that was perhaps stored counts as not stored",
        why="the caller publishes again, and all of it is there twice",
        file="stores/sql/store.py",
        text="        return await self._write(verb, transaction, lost=PublishUncertain)",
        instead="        return await self._write(verb, transaction)",
        killers=(f"{_UNCERTAIN}[batch]",),
    ),
    Mutant(
        name="a publish that was perhaps stored is sent once more with a new id",
        why="the message is there twice",
        file="stores/shared/lane.py",
        text="                    if not await self._tries_again(error, attempt):",
        instead="                    uncertain = lost is not StoreUnavailable and isinstance(error, lost)\n"
        "                    if (attempt or not uncertain) and not await self._tries_again(error, attempt):",
        # Not on Postgres, whose lost reply is a connection that stays silent: there the second try only hangs.
        killers=(_UNCERTAIN.replace("postgres", "mysql"),),
    ),
)
