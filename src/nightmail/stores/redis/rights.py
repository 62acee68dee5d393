"""What the account may do: checked with the store, before a verb is refused at night."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from redis.exceptions import ResponseError

from nightmail.errors import NotAllowed, StoreUnavailable
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.requests import Commands
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.scripts import script

logger = logging.getLogger(__name__)

VERBS: Final = {
    "publish": ["publish", "enlist"],
    "claim and settle messages": ["claim", "look_ahead", "settle", "extend", "recall", "held"],
    "look after dead letters": ["claim_dead", "settle_dead", "extend_dead", "recall_dead"],
    "cancel and reschedule": ["cancel", "cancel_all", "reschedule"],
    "inspect": ["peek", "find", "dead", "dead_groups", "dead_errors", "stats"],
    "redrive": ["redrive"],
    "pause, and ask for a stop": ["pause", "resume", "probe_again", "list_pauses", "request_stop"],
    "keep the list of workers": ["report", "sign_off", "workers", "last_consumers"],
    "explain": ["leases", "facts"],
    "purge and sweep": ["purge", "purge_find", "sweep", "strike_off"],
}
"""The scripts that each kind of work runs."""


async def check_rights(lane: Lane, calls: ScriptCalls, *, wait: bool) -> None:
    """Raise `NotAllowed` for an account that can neither publish nor claim; warn of what else it cannot do."""
    needed = {verb: commands_of(verb) for verb in VERBS}
    every = sorted(frozenset().union(*needed.values()))
    call = calls.call("rights", [calls.keys.registry_tag], *every)
    (found,) = await lane.run(call)
    lacking = {command.decode() for command in found}
    if rings := lacking & {"PUBLISH", "SPUBLISH"}:
        logger.warning(
            "this Redis account may not use %s on our channels: no worker is woken, and messages are found only when "
            "workers look, every five seconds. Grant it the channels &{%s*",
            rings.pop(),
            calls.keys.prefix,
        )
    cannot = {verb: sorted(commands & lacking) for verb, commands in needed.items() if commands & lacking}
    if "publish" in cannot and "claim and settle messages" in cannot:
        raise NotAllowed(f"this Redis account may not use {_listed(lacking - rings)} on the keys of a queue")
    for verb, commands in cannot.items():
        logger.warning("this Redis account cannot %s: it may not use %s", verb, _listed(commands))
    if wait:
        await _check_wait(lane, calls)


def commands_of(verb: str) -> frozenset[str]:
    """The commands that this kind of work needs, besides EVAL and EVALSHA."""
    return frozenset().union(*(script(name).commands for name in VERBS[verb])) - {"TIME", "EXISTS"}


async def _check_wait(lane: Lane, calls: ScriptCalls) -> None:
    try:
        await lane.run(Commands(calls.keys.meta, ("WAIT", 0, 1)))
    except StoreUnavailable as error:
        if isinstance(error.__cause__, ResponseError):
            raise NotAllowed(
                "`wait_replicas` needs the command WAIT, which this Redis account may not use"
            ) from error
        raise


def _listed(commands: Sequence[str] | set[str]) -> str:
    return ", ".join(sorted(commands))
