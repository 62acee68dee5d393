"""What can be wrong with a MariaDB or MySQL server: read from it, and told as findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from nightmail.findings import Code, Finding, Severity
from nightmail.stores.mysql.errors import is_denied, is_undefined
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.migrate import VERSION
from nightmail.stores.mysql.text import Queries
from nightmail.stores.shared.connections import Connections
from nightmail.stores.shared.meta import TablesVersion
from nightmail.stores.shared.unencrypted import unencrypted
from nightmail.wording import length, several

LONG: Final = timedelta(minutes=10)
_USUAL: Final = frozenset({"READ-COMMITTED", "REPEATABLE-READ"})


async def examine(link: Link, sql: Queries, *, processes: int, each: int) -> list[Finding]:
    """What this server's own tables tell. What the account may not read is left out.

    So many processes are at work, with up to so many connections each.
    """

    async def ask(name: str) -> Sequence[Any]:
        try:
            return (await link.ask(sql(name)))[0].rows
        except Exception as error:
            # PROCESS is not among the rights that a service needs; and there may be no tables yet.
            if is_denied(error) or is_undefined(error):
                return []
            raise

    settings = {str(name).lower(): str(value).upper() for name, value in await ask("settings")}
    versions = [TablesVersion(*map(int, row)) for row in await ask("tables_version")]
    return [
        *(finding for version in versions for finding in version.findings(VERSION)),
        *_writable(settings),
        *_durability(settings),
        *_isolation(settings.get("transaction_isolation") or settings.get("tx_isolation", "REPEATABLE-READ")),
        *_replication(settings, await ask("replicas")),
        *_connections(settings, await ask("connections")).findings(processes=processes, each=each),
        *_long_transaction(await ask("long_transaction")),
        *unencrypted(link.connection),
    ]


def _writable(settings: Mapping[str, str]) -> Iterator[Finding]:
    # Newer versions of MariaDB have more words for it than ON.
    if settings.get("read_only", "OFF") not in ("OFF", "0"):
        yield Finding(
            code=Code.UNSUITABLE_SERVER,
            severity=Severity.FATAL,
            what="this server cannot be written to",
            evidence=f"read_only = {settings['read_only']}",
            consequence="nothing can be published, claimed, or noted as delivered, except by an administrator",
            remedy="connect to the primary; if this is the primary: `set global read_only = 0`",
        )


def _durability(settings: Mapping[str, str]) -> Iterator[Finding]:
    loose = []
    if (flush := settings.get("innodb_flush_log_at_trx_commit", "1")) != "1":
        loose.append(f"innodb_flush_log_at_trx_commit = {flush}")
    if settings.get("log_bin") in ("ON", "1") and (sync := settings.get("sync_binlog", "1")) != "1":
        loose.append(f"sync_binlog = {sync}")
    if not loose:
        return
    setting = loose[0].partition(" ")[0]
    yield Finding(
        code=Code.MYSQL_DURABILITY,
        # At 0 even a crash of the server process alone loses commits.
        severity=Severity.FATAL if flush == "0" else Severity.WARNING,
        what="this server does not wait for its disk",
        evidence=" and ".join(loose),
        consequence="a crash of the machine loses what was committed in its last second, publishes among it",
        remedy=f"`set global {setting} = 1`, and in the server's option file",
    )


def _isolation(level: str) -> Iterator[Finding]:
    if level not in _USUAL:
        yield Finding(
            code=Code.MYSQL_ISOLATION,
            severity=Severity.NOTICE,
            what=f"transactions on this server are {level} unless they say otherwise",
            evidence=f"the global isolation level is {level}",
            consequence=(
                "Nightmail's own transactions are READ-COMMITTED all the same; yours that read messages or join a "
                "publish may lock more than they need, or see what is not committed"
            ),
            remedy="`set global transaction isolation level read committed`",
        )


def _replication(settings: Mapping[str, str], found: Sequence[Any]) -> Iterator[Finding]:
    replicas = int(found[0][0]) if found else 0
    waits = any(
        settings.get(name) in ("ON", "1")
        for name in ("rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled")
    )
    if replicas and not waits:
        yield Finding(
            code=Code.MYSQL_REPLICATION,
            severity=Severity.NOTICE,
            what="commits do not wait for a replica",
            evidence=f"{several(replicas, 'replica')}, and semi-synchronous replication is off",
            consequence="a failover loses what was committed and not yet copied, publishes among it",
            remedy="turn semi-synchronous replication on, if that loss is not acceptable",
        )


def _connections(settings: Mapping[str, str], found: Sequence[Any]) -> Connections:
    return Connections(
        most=int(settings.get("max_connections", "0")),
        used=int(found[0][1]) if found else 0,
        code=Code.MYSQL_CONNECTIONS,
        remedy=(
            "`select user, host, count(*) from information_schema.processlist group by 1, 2` shows who has them; raise "
            "max_connections, or let other software use a pool"
        ),
    )


def _long_transaction(found: Sequence[Any]) -> Iterator[Finding]:
    for thread, user, command, locked, seconds in found:
        if seconds > LONG.total_seconds():
            yield Finding(
                code=Code.MYSQL_LONG_TRANSACTION,
                severity=Severity.WARNING,
                subject=(str(thread),),
                what="a transaction has been open for very long",
                evidence=(
                    f"thread {thread} of {user}, {command}: open for {length(timedelta(seconds=int(seconds)))}, with "
                    f"{several(int(locked), 'row')} locked"
                ),
                consequence=(
                    "what was delivered since it began cannot be purged, and claims get slower; what it has locked is "
                    "not delivered"
                ),
                remedy=f"end it where it comes from; or `kill {thread}`",
            )
