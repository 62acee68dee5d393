"""What can be wrong with a Redis server: read from INFO and CONFIG, and told as findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from nightmail.findings import Code, Finding, Severity
from nightmail.stores.redis.connect import Address
from nightmail.stores.redis.link import Link
from nightmail.stores.redis.server import facts_of
from nightmail.stores.shared.connections import Connections
from nightmail.stores.shared.unencrypted import unencrypted
from nightmail.wording import several

MEMORY_SHARE: Final = 0.8
FULL_SHARE: Final = 0.95
_SETTINGS: Final = (
    "maxmemory-policy",
    "appendonly",
    "appendfsync",
    "save",
    "min-replicas-to-write",
    "maxclients",
)


async def examine(
    link: Link, address: Address | None, *, waits: bool, processes: int, each: int
) -> list[Finding]:
    """What this server tells of itself. What the account may not read is left out.

    `waits`: publishes wait for replicas by themselves. So many processes are at work, with up to so many connections
    each.
    """
    info, *answers = await link.ask(("INFO",), *(("CONFIG", "GET", name) for name in _SETTINGS))
    facts = facts_of(info)
    settings = {
        name: answer[1].decode("utf-8", "replace")
        for name, answer in zip(_SETTINGS, answers, strict=True)
        if isinstance(answer, list) and len(answer) > 1
    }
    # Managed services forbid CONFIG: some of it is in INFO, too.
    settings.setdefault("maxmemory-policy", facts.get("maxmemory_policy", "noeviction"))
    settings.setdefault("appendonly", {"1": "yes", "0": "no"}.get(facts.get("aof_enabled", ""), "unknown"))
    settings.setdefault("maxclients", facts.get("maxclients", "0"))
    where = "this server" if address is None else f"node {address[0]}:{address[1]}"
    return [
        *_eviction(settings["maxmemory-policy"], where),
        *_persistence(settings, facts, where),
        *_replicas(settings, facts, where, waits=waits),
        *_memory(facts, where),
        *_connections(int(settings["maxclients"]), facts, where).findings(processes=processes, each=each),
        *unencrypted(link.connection, where),
    ]


def _eviction(policy: str, where: str) -> Iterator[Finding]:
    if policy != "noeviction":
        yield Finding(
            code=Code.REDIS_EVICTION,
            severity=Severity.FATAL,
            subject=(where,),
            what=f"{where} may drop messages when its memory is full",
            evidence=f"maxmemory-policy is {policy}",
            consequence="messages disappear without a trace; a service refuses to start on such a server",
            remedy="`CONFIG SET maxmemory-policy noeviction`, and in redis.conf; keep caches on another server",
        )


def _persistence(settings: Mapping[str, str], facts: Mapping[str, str], where: str) -> Iterator[Finding]:
    log, snapshots = settings["appendonly"], settings.get("save")
    if facts.get("aof_last_write_status", "ok") != "ok":
        yield _not_kept(
            Severity.FATAL,
            f"{where} cannot write its append-only file",
            "aof_last_write_status is not ok",
            "it refuses writes, or loses them at the next restart",
            "see whether its disk is full: `redis-cli info persistence`, and its log",
        )
    elif log == "yes":
        if settings.get("appendfsync") == "no":
            yield _not_kept(
                Severity.WARNING,
                f"{where} does not wait for its disk",
                "appendfsync is no",
                "a crash of the machine loses up to half a minute of publishes",
                "`CONFIG SET appendfsync everysec` (at most a second is lost) or `always` (nothing is)",
            )
    elif log == "no" and snapshots == "":
        yield _not_kept(
            Severity.FATAL,
            f"{where} keeps messages in memory only",
            "appendonly is no, and save is empty",
            "a restart loses every message",
            "`CONFIG SET appendonly yes`, and in redis.conf",
        )
    elif log == "no" and snapshots is not None:
        yield _not_kept(
            Severity.WARNING,
            f"{where} keeps snapshots only",
            f'appendonly is no, and save is "{snapshots}"',
            "a crash loses everything since the last snapshot; what was delivered since then is delivered again",
            "`CONFIG SET appendonly yes`, and in redis.conf",
        )


def _not_kept(severity: Severity, what: str, evidence: str, consequence: str, remedy: str) -> Finding:
    return Finding(
        code=Code.REDIS_PERSISTENCE,
        severity=severity,
        subject=(what,),
        what=what,
        evidence=evidence,
        consequence=consequence,
        remedy=remedy,
    )


def _replicas(
    settings: Mapping[str, str], facts: Mapping[str, str], where: str, *, waits: bool
) -> Iterator[Finding]:
    replicas = int(facts.get("connected_slaves", "0"))
    if replicas and not waits and settings.get("min-replicas-to-write") == "0":
        yield Finding(
            code=Code.REDIS_REPLICAS,
            severity=Severity.NOTICE,
            subject=(where,),
            what=f"publishes do not wait for a replica of {where}",
            evidence=f"{several(replicas, 'replica')}; min-replicas-to-write is 0, and the store has no wait_replicas",
            consequence="a failover loses what was not yet copied, publishes among it",
            remedy=(
                "`CONFIG SET min-replicas-to-write 1`, and `wait_replicas=1` in the URL of the store, if that loss is "
                "not acceptable"
            ),
        )


def _memory(facts: Mapping[str, str], where: str) -> Iterator[Finding]:
    most, used = int(facts.get("maxmemory", "0")), int(facts.get("used_memory", "0"))
    if most and used >= MEMORY_SHARE * most:
        yield Finding(
            code=Code.REDIS_MEMORY,
            severity=Severity.FATAL if used >= FULL_SHARE * most else Severity.WARNING,
            subject=(where,),
            what=f"the memory of {where} is nearly full",
            evidence=f"{used / most:.0%} of maxmemory is used ({_megabytes(used)} of {_megabytes(most)} MB)",
            consequence="when it is full, publishes are refused; what is stored is still delivered",
            remedy="`CONFIG SET maxmemory` to more; purge dead letters; see which queue grows with `nightmail status`",
        )


def _connections(most: int, facts: Mapping[str, str], where: str) -> Connections:
    return Connections(
        most=most,
        used=int(facts.get("connected_clients", "0")),
        code=Code.REDIS_CONNECTIONS,
        remedy=(
            "`CLIENT LIST` shows who has them; `CONFIG SET maxclients` to more, and in redis.conf, or let other "
            "software use a pool"
        ),
        where=where,
        subject=(where,),
    )


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.0f}"
