"""Where MariaDB and MySQL differ. Nowhere else is one told from the other.

Tested on MariaDB 10.11. Written for MySQL 8 from its manual; no MySQL server is at hand where the tests run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nightmail.stores.mysql.errors import ServerTooOld
from nightmail.stores.mysql.text import ALWAYS, Sql

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server."""

    name: str
    oldest: tuple[int, int, int]
    """The first version with all we need."""
    isolation: Sql
    """The variable that tells a session's isolation level."""
    returns_ids: bool
    """Whether an INSERT can return the ids it gave. Else the first is asked for, and the others follow by step."""
    shortest_lock_wait: int
    """Seconds: the least a statement may be told to wait for a row lock. 0 is not at all.

    With 0, MariaDB fails a SKIP LOCKED that meets a locked row (1180): there a statement needs `skips_locked`."""
    skips_locked: Sql
    """What to put before a SKIP LOCKED on a connection that waits as shortly as that."""
    begun: Sql
    """A condition: a transaction is open. Whatever is written later than first in a packet is written only then.

    A transaction that loses to another node of a Galera cluster is rolled back between two statements of a packet. The
    next one is still carried out, by itself, and only then the packet fails: a message would be removed whose copy
    among the dead letters was just undone."""
    own_settings: str
    """Session settings that only this kind has; `{seconds}` is how long a statement may take."""


MARIADB: Final = Dialect(
    name="MariaDB",
    # SKIP LOCKED, JSON_TABLE.
    oldest=(10, 6, 0),
    isolation=Sql("@@tx_isolation"),
    returns_ids=True,
    shortest_lock_wait=0,
    skips_locked=Sql("set statement innodb_lock_wait_timeout = 1 for "),
    begun=Sql("@@in_transaction = 1"),
    # Long lists of ids would become joins with a temporary table, which may be planned the wrong way round. A node of a
    # Galera cluster must first have what others have committed (7: before it reads, changes or inserts), or a name that
    # was freed on another node would still be taken. And it must not try anything again by itself: of a transaction it
    # has just rolled back it would repeat the COMMIT alone, which has nothing left to do, and say that all went well.
    # On a server that is in no cluster, both do nothing.
    own_settings=(
        "max_statement_time = {seconds}, in_predicate_conversion_threshold = 0, "
        "wsrep_sync_wait = 7, wsrep_retry_autocommit = 0"
    ),
)
MYSQL: Final = Dialect(
    name="MySQL",
    # SKIP LOCKED came with 8.0.1, JSON_TABLE with 8.0.4, constraints that are kept with 8.0.16.
    oldest=(8, 0, 16),
    isolation=Sql("@@transaction_isolation"),
    returns_ids=False,
    shortest_lock_wait=1,
    skips_locked=Sql(""),
    # There is no such variable.
    begun=ALWAYS,
    # In milliseconds, and only for statements that write nothing: the others are bounded on our side.
    own_settings="max_execution_time = {seconds}000",
)


def dialect_of(version: str) -> Dialect:
    """The kind of server that calls itself so, or a refusal of one that is too old."""
    dialect = MARIADB if "mariadb" in version.lower() else MYSQL
    # Some MariaDB servers put a version of MySQL in front of their own.
    found = _VERSION.search(version.removeprefix("5.5.5-"))
    numbers = tuple(int(number) for number in found.groups()) if found else (0, 0, 0)
    if numbers < dialect.oldest:
        needed = ".".join(map(str, dialect.oldest))
        raise ServerTooOld(f"{dialect.name} {version} cannot do what is needed: use {needed} or newer")
    return dialect
