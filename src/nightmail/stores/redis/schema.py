"""What every process must agree on, in a hash of its own: the version of the keys, and whose they are."""

from __future__ import annotations

import secrets
from typing import Final

from nightmail.errors import NotAllowed, SchemaDrift, SchemaMissing
from nightmail.findings import Finding
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.requests import Commands
from nightmail.stores.shared.meta import LOOK_INTERVAL, NOTICE_HORIZON, TablesVersion

VERSION: Final = 1


async def migrate(lane: Lane, keys: Keys) -> None:
    """Record the version, unless one is recorded. Keys are created by the first message."""
    constants: dict[str, str | int] = {
        "version": VERSION,
        "serves": VERSION,
        "identity": secrets.token_hex(16),
        "look_interval": int(LOOK_INTERVAL.total_seconds()),
        "notice_horizon": int(NOTICE_HORIZON.total_seconds()),
    }
    # Set only if absent: of two processes that do this at the same time, one is first.
    await lane.run(
        Commands(keys.meta, *(("HSETNX", keys.meta, name, value) for name, value in constants.items()))
    )


async def check(lane: Lane, keys: Keys) -> None:
    """See `Store.check`."""
    (kind,) = await lane.run(Commands(keys.meta, ("TYPE", keys.meta)))
    if kind == b"none":
        raise SchemaMissing(
            f"there is no key {keys.meta!r}: run `nightmail migrate`, or pass `create_tables=True`"
        )
    if kind != b"hash":
        raise SchemaDrift([f"{keys.meta} is a {kind.decode()} and not a hash"])
    (found,) = await lane.run(
        Commands(
            keys.meta,
            ("HMGET", keys.meta, "version", "serves", "identity", "look_interval", "notice_horizon"),
        )
    )
    version, serves, identity, look_interval, horizon = found
    number, oldest = _number(version), _number(serves)
    if number is None or oldest is None or identity is None:
        raise SchemaDrift([f"{keys.meta} lacks version, serves or identity"])
    if problem := TablesVersion(number, oldest).problem(VERSION):
        raise problem
    differences = [
        f"{name} is {_shown(value)} and not {wanted}"
        for name, value, wanted in (
            ("look_interval", look_interval, int(LOOK_INTERVAL.total_seconds())),
            ("notice_horizon", horizon, int(NOTICE_HORIZON.total_seconds())),
        )
        if _number(value) != wanted
    ]
    if differences:
        raise SchemaDrift(differences)


async def findings(lane: Lane, keys: Keys) -> list[Finding]:
    """What there is to say about a version that this code can use. Nothing, where it cannot be read."""
    try:
        (found,) = await lane.run(Commands(keys.meta, ("HMGET", keys.meta, "version", "serves")))
    except (NotAllowed, SchemaDrift):
        return []
    version, serves = map(_number, found)
    return [] if version is None or serves is None else list(TablesVersion(version, serves).findings(VERSION))


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None


def _shown(value: bytes | None) -> str:
    return "missing" if value is None else value.decode("utf-8", "backslashreplace")
