"""The command line."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

_CLI: Final = "tests/cli"
_ON_A_STORE: Final = f"{_CLI}/test_sqlite_commands.py::TestCommandsOnSQLite::"

MUTANTS: Final = (
    Mutant(
        name="a message writes to the terminal",
        why="a queue's name moves the cursor, or hides what is on the screen",
        file="cli/texts.py",
        text="    return one_line(str(text), limit)",
        instead="    return str(text)[:limit]",
        killers=(f"{_ON_A_STORE}test_nothing_in_a_message_can_move_the_cursor",),
    ),
    Mutant(
        name="a list shows bodies",
        why="payloads stand in terminals and in their logs",
        file="cli/output.py",
        text='frozenset({"body", "encoded_headers"})',
        instead="frozenset()",
        killers=(f"{_ON_A_STORE}test_what_waits_is_listed_page_by_page_without_its_body",),
    ),
    Mutant(
        name="a password may stand among the arguments",
        why="every user of the machine can read it",
        file="cli/which_store.py",
        text="    if url is not None:\n        if has_password(url):",
        instead="    if url is not None:\n        if not url:",
        killers=(
            f"{_CLI}/test_which_store.py::test_a_password_among_the_arguments_is_refused_and_not_repeated",
        ),
    ),
    Mutant(
        name="a file with a password may be anyone's",
        why="every user of the machine can read it",
        file="cli/which_store.py",
        text="file.stat().st_mode & _OTHERS",
        instead="file.stat().st_mode & stat.S_IWOTH",
        killers=(f"{_CLI}/test_which_store.py::test_a_file_with_a_password_must_be_its_owners_alone",),
    ),
    Mutant(
        name="a script deletes without --yes",
        why="a mistyped command in a script empties a queue",
        file="cli/confirming.py",
        text='        raise Refusal(f"this would {what}, and no one is here to ask: add --yes", UNCONFIRMED)',
        instead="        return",
        killers=(f"{_ON_A_STORE}test_a_queue_is_emptied_only_on_purpose",),
    ),
    Mutant(
        name="a missing table looks like a server that is down",
        why="a deployment waits for a server instead of migrating",
        file="cli/exit_codes.py",
        text="            return SCHEMA",
        instead="            return UNREACHABLE",
        killers=(f"{_ON_A_STORE}test_migrate_says_what_it_will_do_and_does_it_once",),
    ),
    Mutant(
        name="audit: what was interrupted leaves no line",
        why="there is no telling who deleted half of the dead letters",
        file="cli/audit.py",
        text="    try:\n        yield\n    finally:\n        if counter.done:",
        instead="    yield\n    if counter.total:\n        if counter.done:",
        killers=("tests/cli/test_audit.py::test_what_was_done_before_the_store_failed_is_noted",),
    ),
    Mutant(
        name="audit: a line that cannot be written is dropped",
        why="a change leaves no trace, and no one hears of it",
        file="cli/audit.py",
        text="        if why is not None:",
        instead='        if why == "":',
        killers=("tests/cli/test_audit.py::test_a_line_that_cannot_be_written_is_told_with_what_was_done",),
    ),
    Mutant(
        name="audit: a line is written over the first",
        why="who comes later hides what was done before",
        file="cli/audit.py",
        text="os.O_WRONLY | os.O_APPEND | os.O_CREAT",
        instead="os.O_WRONLY | os.O_CREAT",
        killers=("tests/cli/test_audit.py::test_the_file_is_added_to_and_its_owners_alone",),
    ),
)
