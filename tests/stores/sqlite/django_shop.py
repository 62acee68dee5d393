"""What a Django project does in the tests, in a process that has Django's settings to itself.

It is told by lines on stdin: a part, a tab, the database file. What the part prints comes back, then a line with a dot.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Coroutine
from contextlib import closing
from datetime import timedelta
from typing import Any

import django
from django.conf import settings
from django.db import DatabaseError, connection, connections, transaction

from nightmail.errors import NightmailError, TimerExists
from nightmail.message import Message
from nightmail.store import Blocking
from nightmail.stores.sqlite import SQLiteStore


def at_once(verb: Coroutine[Any, Any, object]) -> object:
    try:
        verb.send(None)
    except StopIteration as end:
        result: object = end.value
        return result
    raise AssertionError("the verb waits for something")


def publish(store: SQLiteStore, text: str, *, session: object = connection, **options: Any) -> object:
    message = Message(queue="orders", body=text.encode(), **options)
    return at_once(store.publish(message, transaction=Blocking(session)))


def write(value: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects VALUES (%s)", [value])


def commit(store: SQLiteStore) -> None:
    """Publish inside an atomic block, by each name of the connection."""
    with transaction.atomic():
        publish(store, "proxy")
        publish(store, "wrapper", session=connections["default"])
        write("effect")


def roll_back(store: SQLiteStore) -> None:
    """Leave an atomic block by an error."""
    try:
        with transaction.atomic():
            publish(store, "rolled back")
            write("rolled back")
            raise KeyError
    except KeyError:
        pass


def savepoint(store: SQLiteStore) -> None:
    """Roll back an inner block only."""
    with transaction.atomic():
        publish(store, "kept")
        try:
            with transaction.atomic():
                publish(store, "dropped")
                raise KeyError
        except KeyError:
            pass


def conflict(store: SQLiteStore) -> None:
    """Go on after a timer id was taken."""
    with transaction.atomic():
        publish(store, "first", timer_id="a")
        try:
            publish(store, "second", timer_id="a", on_conflict="raise")
        except TimerExists:
            write("effect")


def every_verb(store: SQLiteStore) -> None:
    """Everything that synchronous code may ask for."""
    with transaction.atomic():
        publish(store, "moved", timer_id="moved")
        publish(store, "cancelled", timer_id="cancelled")
        given = Blocking(connection)
        batch = [Message(queue="orders", body=text) for text in (b"one", b"two")]
        at_once(store.publish_batch(batch, transaction=given))
        at_once(store.cancel("orders", "cancelled", transaction=given))
        at_once(store.reschedule("orders", "moved", timedelta(0), transaction=given))


def outside(store: SQLiteStore) -> None:
    """Publish where each statement commits by itself."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    refused(lambda: publish(store, "never"))


def doomed(store: SQLiteStore) -> None:
    """Publish where Django has decided to roll back."""
    with transaction.atomic():
        transaction.set_rollback(True)
        refused(lambda: publish(store, "never"))


def other_file(store: SQLiteStore) -> None:
    """Publish into another database than the session's."""
    with transaction.atomic(using="other"):
        refused(lambda: publish(store, "never", session=connections["other"]))


def stale(store: SQLiteStore) -> None:
    """Read, let somebody else write, then publish."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM effects")
        cursor.fetchall()
        with closing(sqlite3.connect(store.file)) as other, other:
            other.execute("INSERT INTO effects VALUES ('meanwhile')")
        refused(lambda: publish(store, "never"))


def immediate(store: SQLiteStore) -> None:
    """Read first in a transaction that began with the write lock."""
    options = connection.settings_dict["OPTIONS"]
    options["transaction_mode"] = "IMMEDIATE"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM effects")
        cursor.fetchall()
        with closing(sqlite3.connect(store.file, timeout=0)) as other:
            try:
                other.execute("INSERT INTO effects VALUES ('meanwhile')")
            except sqlite3.OperationalError as error:
                print(error)
        publish(store, "published")
    del options["transaction_mode"]


def debug(store: SQLiteStore) -> None:
    """Publish while Django keeps what it executes."""
    settings.DEBUG = True
    with transaction.atomic():
        publish(store, "s3cret")
    print("s3cret" in repr(connection.queries))
    settings.DEBUG = False


def refused_row(store: SQLiteStore) -> None:
    """Go on after a row was refused, as Django would allow."""
    with transaction.atomic():
        write("effect")
        refused(lambda: publish(store, "s3cret"))
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        except DatabaseError as error:
            print(error)


def refused(verb: Callable[[], object]) -> None:
    try:
        verb()
    except NightmailError as error:
        print(type(error).__name__, error)
    else:
        print("not refused")


PARTS: dict[str, Callable[[SQLiteStore], None]] = {
    part.__name__: part
    for part in (
        commit, roll_back, savepoint, conflict, every_verb, outside, doomed, other_file, stale, immediate, debug,
        refused_row,
    )
}  # fmt: skip


def main() -> None:
    engine = "django.db.backends.sqlite3"
    settings.configure(
        DATABASES={"default": {"ENGINE": engine, "NAME": ""}, "other": {"ENGINE": engine, "NAME": ""}},
        USE_TZ=True,
    )
    django.setup()
    for line in sys.stdin:
        part, file = line.rstrip("\n").split("\t")
        connections.close_all()
        connections["default"].settings_dict["NAME"] = file
        connections["other"].settings_dict["NAME"] = f"{file}.other"
        # Never opened: the project only publishes.
        PARTS[part](SQLiteStore(file))
        print(".", flush=True)


if __name__ == "__main__":
    main()
