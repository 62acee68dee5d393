"""Refuses options that would be ignored, or would lose messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(
        ("max_retries", "retries", "max_attempts", "max_tries", "attempts"),
        ("retry", "retry=ExponentialRetry(max_attempts=...)"),
    ),
    **dict.fromkeys(("retry_delay", "backoff", "retry_policy", "retry_strategy"), ("retry", "retry=")),
    **dict.fromkeys(("concurrency", "workers", "threads", "prefetch"), ("max_workers", "max_workers=")),
    **dict.fromkeys(
        ("lease", "lease_ttl", "visibility_timeout"), ("lease_ttl_seconds", "lease_ttl_seconds=")
    ),
    **dict.fromkeys(("timeout", "time_limit"), ("handler_timeout", "handler_timeout=")),
    **dict.fromkeys(("delay", "countdown", "delay_seconds"), ("activate_in", "activate_in=")),
    **dict.fromkeys(("eta", "run_at", "scheduled_at", "due_at"), ("activate_at", "activate_at=")),
    **dict.fromkeys(("ttl", "expires", "expiration"), ("expires_in", "expires_in=")),
    **dict.fromkeys(("unique_key", "dedup_id", "deduplication_id", "message_id"), ("timer_id", "timer_id=")),
    **dict.fromkeys(("key", "group_id", "partition_key"), ("ordering_key", "ordering_key=")),
    **dict.fromkeys(("transaction", "connection", "conn"), ("session", "session=")),
    **dict.fromkeys(("batch_size", "max_records"), ("max_batch", "batch=True, max_batch=")),
}
"""What other libraries call an option of ours: the option, and what to write."""
_CLOSE: Final = 0.75
"""How similar a name must be to be suggested: at 0.6 `max_retries` would suggest `max_workers`."""


def check_options(what: str, options: Mapping[str, Any], known: type[Any]) -> None:
    """Refuse a misspelled option, which would seem to work, and an acknowledgement before the handler ran."""
    names = known.__annotations__.keys()
    for name in options:
        if name not in names:
            raise TypeError(f"{what} has no option {name!r}{_hint(name, names)}")
    if options.get("ack_policy") is AckPolicy.ACK_FIRST:
        raise SetupError(
            "ACK_FIRST would delete a message before its handler ran, and lose it with the process: "
            "use AckPolicy.ACK to delete it even when the handler fails, or the default to retry"
        )


def _hint(name: str, names: Iterable[str]) -> str:
    if name in _ELSEWHERE and _ELSEWHERE[name][0] in names:
        return f": write {_ELSEWHERE[name][1]}"
    close = difflib.get_close_matches(name, names, n=1, cutoff=_CLOSE)
    close += [each for each in names if each.startswith(name)]
    return f": did you mean {close[0]!r}?" if close else ""
