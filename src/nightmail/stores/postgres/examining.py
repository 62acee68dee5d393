"""What can be wrong with a Postgres server: read from it, and told as findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from nightmail.findings import Code, Finding, Severity
from nightmail.stores.postgres.link import Link
from nightmail.stores.postgres.migrate import VERSION
from nightmail.stores.postgres.place import Place
from nightmail.stores.shared.connections import Connections
from nightmail.stores.shared.meta import TablesVersion
from nightmail.stores.shared.unencrypted import unencrypted
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask
from nightmail.wording import count, length, moment

DEAD_ROWS: Final = 50_000
DEAD_SHARE: Final = 0.2
"""Autovacuum begins at a fiftieth: from this share of live rows on, and so many rows, it does not keep up."""
OLD: Final = timedelta(minutes=10)
SLOT_BYTES: Final = 1_000_000_000
SLOT_TRANSACTIONS: Final = 100_000
"""How far the reader of a replication slot may be behind: in bytes of the log, and in transactions."""
QUEUE_SHARE: Final = 0.1
WAKEUP_SECONDS: Final = 5.0
"""How long a first wake-up may take: to connect, and to hear an echo."""
_TABLES: Final = ("messages", "dead")


class Examination(NamedTuple):
    """What one connection shows."""

    found: list[Finding]
    can_listen: bool
    """Whether wake-ups can be tried: the channel is in the tables, and a standby accepts no LISTEN."""
    pooled: bool
    """Whether there is a connection pooler in between."""


async def examine(
    link: Link, statements: Mapping[str, Statement], place: Place, *, processes: int, each: int
) -> Examination:
    """What this server's own views tell. So many processes are at work, with up to so many connections each."""
    values = {"tables": [place.quoted(table) for table in _TABLES], "meta": place.quoted("meta")}

    async def ask(name: str) -> Sequence[Any]:
        rows: Sequence[Any] = await link.send(Ask(statements[name], values))
        return rows

    settings = {row["name"]: row["value"] for row in await ask("settings")}
    has_tables = bool((await ask("has_tables"))[0]["found"])
    versions = [TablesVersion(*row) for row in await ask("tables_version")] if has_tables else []
    writable = (await ask("writable"))[0]
    found = [
        *(finding for version in versions for finding in version.findings(VERSION)),
        *_writable(writable),
        *_dead_rows(await ask("dead_rows")),
        *_old_snapshot(await ask("oldest_snapshot")),
        *_replication_slots(await ask("replication_slots")),
        *_notify_queue((await ask("notify_queue"))[0]["used"]),
        *_durability(settings),
        *_isolation(settings.get("default_transaction_isolation", "read committed")),
        *_standbys((await ask("standbys"))[0]),
        *_connections((await ask("connections"))[0]).findings(processes=processes, each=each),
        *unencrypted(link.driver),
    ]
    # Without a version there is no channel either: the tables were not adopted yet.
    return Examination(found, bool(versions) and not writable["standby"], link.pooled)


def no_wakeups(*, pooled: bool) -> Finding:
    """NOTIFY does not get through."""
    return Finding(
        code=Code.POSTGRES_NO_WAKEUPS,
        severity=Severity.WARNING,
        what="wake-ups from Postgres do not arrive",
        evidence=(
            "there is a connection pooler in between, and through it LISTEN reaches no one"
            if pooled
            else f"LISTEN was accepted, but no notification came within {WAKEUP_SECONDS:g} s"
        ),
        consequence="workers look every second instead of being woken: up to a second later, and more queries",
        remedy="give the broker a URL that leads past the pooler, or a pool in session mode",
    )


def _writable(row: Any) -> Iterator[Finding]:
    if not row["writable"]:
        yield Finding(
            code=Code.UNSUITABLE_SERVER,
            severity=Severity.FATAL,
            what="this server cannot be written to",
            evidence="it is a standby" if row["standby"] else "transactions of this account are read-only",
            consequence="nothing can be published, claimed, or noted as delivered",
            remedy=(
                "connect to the primary, or promote this server"
                if row["standby"]
                else "reset `default_transaction_read_only`: of this account, of the database, or of the server"
            ),
        )


def _dead_rows(tables: Sequence[Any]) -> Iterator[Finding]:
    for row in tables:
        at = row["vacuumed_at"]
        last = "never vacuumed" if at is None else f"last vacuumed {moment(at)}"
        seen = f"{count(row['dead'])} dead rows to {count(row['live'])} live ones, {last}"
        if not row["vacuums"]:
            yield _vacuum(f"autovacuum is off for {row['name']}", seen, Severity.WARNING, row["name"])
        elif row["dead"] > DEAD_ROWS + DEAD_SHARE * row["live"]:
            what = f"autovacuum does not keep up with {row['name']}"
            yield _vacuum(what, seen, Severity.WARNING, row["name"])


def _vacuum(what: str, seen: str, severity: Severity, table: str) -> Finding:
    return Finding(
        code=Code.POSTGRES_DEAD_ROWS,
        severity=severity,
        subject=(table,),
        what=what,
        evidence=seen,
        consequence="claims read past the dead rows and get slower; the table grows",
        remedy=(
            "look for an old transaction first (it keeps dead rows alive), then "
            f"`alter table {table} reset (autovacuum_enabled)` and `vacuum {table}`"
        ),
    )


def _old_snapshot(found: Sequence[Any]) -> Iterator[Finding]:
    for row in found:
        if row["seconds"] > OLD.total_seconds():
            application = f", application {row['application']}" if row["application"] else ""
            age = length(timedelta(seconds=row["seconds"]))
            yield Finding(
                code=Code.POSTGRES_OLD_SNAPSHOT,
                severity=Severity.WARNING,
                subject=(row["who"],),
                what="an old transaction keeps dead rows alive",
                evidence=f"{row['who']}{application}, account {row['account']}: {row['state']}, open for {age}",
                consequence=(
                    "what was delivered since it began cannot be removed from the tables: claims get slower and slower"
                ),
                remedy=f"end it where it comes from; or `{row['remedy']}`",
            )


def _replication_slots(found: Sequence[Any]) -> Iterator[Finding]:
    for row in found:
        held: list[str] = []
        consequences: list[str] = []
        if row["bytes"] > SLOT_BYTES:
            held.append(f"{count(row['bytes'] // 1_000_000)} MB of the log")
            consequences.append(
                "when the log has filled the disk, the server stops, and all publishes with it"
            )
        if row["transactions"] > SLOT_TRANSACTIONS:
            held.append(f"the dead rows of the last {count(row['transactions'])} transactions")
            consequences.append(
                "what was delivered since then cannot be removed: claims get slower and slower"
            )
        if row["catalog_transactions"] > SLOT_TRANSACTIONS:
            held.append(f"those of the system tables of the last {count(row['catalog_transactions'])}")
            consequences.append("system tables grow, and everything that plans a query gets slower")
        if not held:
            continue
        reader = "its reader is behind" if row["active"] else "nothing reads it"
        yield Finding(
            code=Code.POSTGRES_REPLICATION_SLOT,
            severity=Severity.WARNING,
            subject=(row["name"],),
            what=f"replication slot {row['name']} keeps what the server would remove",
            evidence=f"{row['kind']} slot, {reader}; it keeps {', '.join(held)}",
            consequence="; ".join(consequences),
            remedy=(
                "find out why its reader is slow; max_slot_wal_keep_size limits the log that it can keep"
                if row["active"]
                else f"start its reader (a standby, a change feed); if there is none any more: `{row['remedy']}`"
            ),
        )


def _notify_queue(used: float) -> Iterator[Finding]:
    if used > QUEUE_SHARE:
        yield Finding(
            code=Code.POSTGRES_NOTIFY_QUEUE,
            severity=Severity.FATAL if used > 5 * QUEUE_SHARE else Severity.WARNING,
            what="the server's queue of notifications fills up",
            evidence=f"{used:.2%} of it is used",
            consequence="when it is full, every transaction that notifies fails at its commit: publishes with it",
            remedy=(
                "end the session that listens and has a transaction open: `select pid, application_name, xact_start "
                "from pg_stat_activity where state like 'idle in transaction%' order by xact_start`"
            ),
        )


def _durability(settings: Mapping[str, str]) -> Iterator[Finding]:
    off = [name for name in ("fsync", "full_page_writes") if settings.get(name) == "off"]
    if off:
        yield _not_durable(
            Severity.FATAL,
            " and ".join(f"{name} = off" for name in off),
            "a crash of the machine can destroy the database, and all messages in it",
            off[0],
        )
    elif settings.get("synchronous_commit") == "off":
        yield _not_durable(
            Severity.WARNING,
            "synchronous_commit = off",
            "a crash of the server loses what was committed in its last moments, publishes among it",
            "synchronous_commit",
        )


def _not_durable(severity: Severity, evidence: str, consequence: str, setting: str) -> Finding:
    return Finding(
        code=Code.POSTGRES_DURABILITY,
        severity=severity,
        what="this server does not wait for its disk",
        evidence=evidence,
        consequence=consequence,
        remedy=f"`alter system reset {setting}` and `select pg_reload_conf()`; look for it in postgresql.conf, too",
    )


def _isolation(level: str) -> Iterator[Finding]:
    if level != "read committed":
        yield Finding(
            code=Code.POSTGRES_ISOLATION,
            severity=Severity.NOTICE,
            what=f"transactions of this account are {level} unless they say otherwise",
            evidence=f"default_transaction_isolation = {level}",
            consequence=(
                "Nightmail's own transactions are read committed all the same; yours may fail with serialization "
                "errors when they acknowledge a message whose lease was renewed since they began"
            ),
            remedy="call `hold` first in such a transaction, or begin it as read committed",
        )


def _standbys(row: Any) -> Iterator[Finding]:
    if row["all_of_them"] and not row["waited_for"]:
        standbys = "1 standby" if row["all_of_them"] == 1 else f"{count(row['all_of_them'])} standbys"
        yield Finding(
            code=Code.POSTGRES_STANDBYS,
            severity=Severity.NOTICE,
            what="commits do not wait for a standby",
            evidence=f"{standbys}, none synchronous: {row['names']}",
            consequence="a failover loses what was committed and not yet copied, publishes among it",
            remedy="set synchronous_standby_names, if that loss is not acceptable; commits then take longer",
        )


def _connections(row: Any) -> Connections:
    return Connections(
        most=row["most"],
        used=row["used"],
        others=row["others"],
        code=Code.POSTGRES_CONNECTIONS,
        remedy=(
            "`select application_name, count(*) from pg_stat_activity group by 1 order by 2 desc` shows who has them; "
            "raise max_connections, or let other software use a pool"
        ),
    )
