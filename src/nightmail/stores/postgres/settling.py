"""Settles deliveries of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from nightmail.clock import Clock
from nightmail.describing import last_error
from nightmail.outcome import ENDS, Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.store import Settlement
from nightmail.stores.postgres.leases import UnderLease, lease_values
from nightmail.stores.postgres.times import duration
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask

_ZERO: Final = timedelta(0)


class Settling(UnderLease):
    """Messages: done, dead or brought back."""

    what = "message"
    suffix = ""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock, *, keep_delivered: bool) -> None:
        super().__init__(statements, clock)
        self._keep_delivered = keep_delivered

    def _ending(self, batch: Sequence[Settlement]) -> Ask:
        if not self._keep_delivered and {type(settlement.outcome) for settlement in batch} == {Done}:
            leases = lease_values([settlement.delivery for settlement in batch])
            return self._ask("settle_done", {**leases, "now": self._clock.now()})
        return self._ask("settle", self._mixed(batch))

    def _mixed(self, batch: Sequence[Settlement]) -> dict[str, Any]:
        ordered = sorted(batch, key=lambda settlement: settlement.delivery.id)
        ending = [settlement for settlement in ordered if isinstance(settlement.outcome, ENDS)]
        back = [settlement for settlement in ordered if not isinstance(settlement.outcome, ENDS)]
        given_up = [
            settlement.outcome if isinstance(settlement.outcome, Dead) else None for settlement in ending
        ]
        return {
            **self._ack_values(),
            "ids": [settlement.delivery.id for settlement in ending],
            "tokens": [settlement.delivery.token for settlement in ending],
            "reasons": [None if dead is None else dead.reason for dead in given_up],
            "errors": [None if dead is None else dead.error for dead in given_up],
            "ran": [dead is not None and dead.ran for dead in given_up],
            **brought_back(back),
            "back_errors": [last_error(settlement.outcome) for settlement in back],
        }

    def _ack_values(self) -> dict[str, Any]:
        return {"keep": self._keep_delivered, "now": self._clock.now()}


def brought_back(batch: Sequence[Settlement]) -> dict[str, list[Any]]:
    """The changes to rows that stay, as parameters. `batch` is sorted by id."""
    return {
        "back_ids": [settlement.delivery.id for settlement in batch],
        "back_tokens": [settlement.delivery.token for settlement in batch],
        "back_kinds": [_kind(settlement.outcome) for settlement in batch],
        "back_afters": [_after(settlement.outcome) for settlement in batch],
    }


def _kind(outcome: Outcome) -> str:
    return type(outcome).__name__.lower()


def _after(outcome: Outcome) -> timedelta | None:
    match outcome:
        case Retry(after) | Postpone(after):
            return duration(after)
        case Release() | Done() | Dead():
            return _ZERO
