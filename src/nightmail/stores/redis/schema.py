"""What every process must agree on, in a hash of its own: the version of the keys, and whose they are.

Keys are created by the first message, and always of the newest version. `migrations/0002_<what>.lua` is what the keys
of version 1 get to become version 2 (see `shared.migrations`). It is a script like all others, and runs for the keys
outside any queue and for each queue:

    KEYS     the tag of the queue, or that of the registry
    ARGV[5]  how many messages, or the like, it may change: while it runs, no other client is served
    ARGV[6]  what the call before answered; nothing in the first call

It answers where the next call goes on, or nothing when this tag is done. It leaves alone what it has changed already,
and what a later version has changed. While it runs and afterwards, code of the version before may write as it always
did: newer code reads both, until a later step no longer serves the old.
"""

from __future__ import annotations

import secrets
from typing import Final

from nightmail.errors import NotAllowed, SchemaDrift, SchemaMissing
from nightmail.findings import Finding
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.requests import Commands
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.scripts import PACKAGE, script_of
from nightmail.stores.shared.meta import LOOK_INTERVAL, NOTICE_HORIZON, TablesVersion
from nightmail.stores.shared.migrations import Step, steps

VERSION: Final = 1
AT_ONCE: Final = 1_000
"""How much one call of a step changes: some milliseconds in which no other client is served."""


async def migrate(lane: Lane, calls: ScriptCalls, registry: Registry) -> None:
    """Record the version, unless one is recorded, and take every step from the recorded one to this version."""
    keys = calls.keys
    constants: dict[str, str | int] = {
        "version": VERSION,
        "serves": VERSION,
        "identity": secrets.token_hex(16),
        "look_interval": int(LOOK_INTERVAL.total_seconds()),
        "notice_horizon": int(NOTICE_HORIZON.total_seconds()),
    }
    # Set only if absent: of two processes that do this at the same time, one is first.
    noting = [("HSETNX", keys.meta, name, value) for name, value in constants.items()]
    *_, version = await lane.run(Commands(keys.meta, *noting, ("HGET", keys.meta, "version")))
    found = _number(version)
    # One that is no number is reported by `check`.
    for step in steps(PACKAGE, found=VERSION if found is None else found, needed=VERSION):
        await _take(lane, calls, registry, step)


async def _take(lane: Lane, calls: ScriptCalls, registry: Registry, step: Step) -> None:
    """Every part may run twice, and in two processes at the same time, so the version comes last."""
    keys, script = calls.keys, script_of(f"migration {step.version}", step.text)
    done: set[str] = set()
    # A queue may get its first message meanwhile.
    while tags := {keys.registry_tag, *map(keys.tag, await registry.queues())} - done:
        for tag in sorted(tags):
            if await _version(lane, keys) != step.version - 1:
                return  # Another process has taken this step meanwhile.
            after: bytes | str | None = ""
            while after is not None:
                (after,) = await lane.run(calls.call(script, [tag], AT_ONCE, after))
            done.add(tag)
    await lane.run(calls.call("note_step", [keys.registry_tag], step.version, step.serves))


async def _version(lane: Lane, keys: Keys) -> int | None:
    (version,) = await lane.run(Commands(keys.meta, ("HGET", keys.meta, "version")))
    return _number(version)


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
    if number > VERSION:
        return  # Newer keys that serve this code. What they must be like, newer code knows.
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
