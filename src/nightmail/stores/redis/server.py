"""Requirements on the server: it must keep what it stores, and understand the scripts."""

from __future__ import annotations

import logging
from typing import Final

from redis.exceptions import ResponseError

from nightmail.errors import UnsuitableServer
from nightmail.stores.redis.link import Link

logger = logging.getLogger(__name__)

OLDEST: Final = (6, 2)
OLDEST_IN_A_CLUSTER: Final = (7, 0)
"""Wake-ups in a cluster use sharded pub/sub, new in 7.0."""


async def check_server(link: Link, *, cluster: bool) -> None:
    """Raise `UnsuitableServer` unless messages are safe here."""
    info, policy = await link.ask(("INFO",), ("CONFIG", "GET", "maxmemory-policy"))
    facts = facts_of(info)
    _check_version(facts.get("redis_version", ""), cluster=cluster)
    _check_role(facts, cluster=cluster)
    _check_policy(policy, facts)


def facts_of(info: object) -> dict[str, str]:
    """The fields of INFO; empty where it is forbidden."""
    if not isinstance(info, bytes):
        return {}
    lines = info.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _check_version(version: str, *, cluster: bool) -> None:
    parts = version.split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        logger.warning("the version of this Redis cannot be read: it must be 6.2 or newer, 7.0 in a cluster")
        return
    needed = OLDEST_IN_A_CLUSTER if cluster else OLDEST
    if (int(parts[0]), int(parts[1])) < needed:
        raise UnsuitableServer(
            f"this Redis is version {version}: {needed[0]}.{needed[1]} or newer is needed"
            + (" in a cluster" if cluster else "")
        )


def _check_role(facts: dict[str, str], *, cluster: bool) -> None:
    if not cluster and facts.get("cluster_enabled") == "1":
        raise UnsuitableServer("this Redis is a node of a cluster: use redis+cluster:// instead of redis://")
    if facts.get("role", "master") != "master":
        raise UnsuitableServer("this Redis is a replica, and cannot be written to: connect to its primary")


def _check_policy(answer: object, facts: dict[str, str]) -> None:
    policy: str | None = None
    if isinstance(answer, list) and len(answer) > 1:
        policy = answer[1].decode("utf-8", "replace")
    elif isinstance(answer, ResponseError) or not answer:
        # CONFIG is forbidden, as on managed services: INFO has the same.
        policy = facts.get("maxmemory_policy")
    if policy is None:
        logger.warning(
            "whether this Redis may drop messages cannot be read, because CONFIG and INFO are forbidden: make sure "
            "that maxmemory-policy is noeviction"
        )
    elif policy != "noeviction":
        raise UnsuitableServer(
            f"this Redis may drop messages when its memory is full: maxmemory-policy is {policy}. Set it with "
            "`CONFIG SET maxmemory-policy noeviction`, and in redis.conf"
        )
