"""Where MariaDB and MySQL differ. No other module distinguishes them.

Tested on MariaDB 10.11; `make compat` tries MySQL 9 too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nightmail.errors import UnsuitableServer
from nightmail.stores.mysql.text import ALWAYS, Sql

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server."""

    name: str
    oldest: tuple[int, int, int]
    """The first version that has all we need."""
    isolation: Sql
    """The variable with a session's isolation level."""
    returns_ids: bool
    """Whether an INSERT can return the ids it assigned. Else the first is read, and the others follow by step."""
    shortest_lock_wait: int
    """Seconds: the shortest row lock wait that can be set. 0: none.

    With 0, MariaDB fails a SKIP LOCKED that meets a locked row (1180): there a statement needs `skips_locked`."""
    skips_locked: Sql
    """The prefix of a SKIP LOCKED on a connection with the shortest lock wait."""
    begun: Sql
    """A condition: a transaction is open. Every write in a packet after the first statement depends on it.

    A transaction that loses to another node of a Galera cluster is rolled back between two statements of a packet. The
    next one still runs, by itself, and only then the packet fails: a message would be removed whose copy among the dead
    letters was just rolled back."""
    own_settings: str
    """Session settings of this kind of server only; `{seconds}` is the statement timeout."""


MARIADB: Final = Dialect(
    name="MariaDB",
    # SKIP LOCKED, JSON_TABLE.
    oldest=(10, 6, 0),
    isolation=Sql("@@tx_isolation"),
    returns_ids=True,
    shortest_lock_wait=0,
    skips_locked=Sql("set statement innodb_lock_wait_timeout = 1 for "),
    begun=Sql("@@in_transaction = 1"),
    # Long lists of ids would become joins with a temporary table, which may be planned in a bad order. A Galera node
    # must first apply what others have committed (7: before it reads, changes or inserts), or a timer id that was freed
    # on another node would still be taken. And it must not retry by itself: after rolling back a transaction it would
    # repeat the COMMIT alone, which has nothing left to do, and report success. Outside a cluster, both do nothing.
    own_settings=(
        "max_statement_time = {seconds}, in_predicate_conversion_threshold = 0, "
        "wsrep_sync_wait = 7, wsrep_retry_autocommit = 0"
    ),
)
MYSQL: Final = Dialect(
    name="MySQL",
    # SKIP LOCKED came with 8.0.1, JSON_TABLE with 8.0.4, enforced check constraints with 8.0.16.
    oldest=(8, 0, 16),
    isolation=Sql("@@transaction_isolation"),
    returns_ids=False,
    shortest_lock_wait=1,
    skips_locked=Sql(""),
    # MySQL has no such variable.
    begun=ALWAYS,
    # In milliseconds, and only for reads: writes time out on our side.
    own_settings="max_execution_time = {seconds}000",
)


def dialect_of(version: str) -> Dialect:
    """The kind of server with this version string, or a refusal if it is too old."""
    dialect = MARIADB if "mariadb" in version.lower() else MYSQL
    # Some MariaDB servers prefix their version with one of MySQL.
    found = _VERSION.search(version.removeprefix("5.5.5-"))
    numbers = tuple(int(number) for number in found.groups()) if found else (0, 0, 0)
    if numbers < dialect.oldest:
        needed = ".".join(map(str, dialect.oldest))
        raise UnsuitableServer(f"{dialect.name} {version} cannot do what is needed: use {needed} or newer")
    return dialect
