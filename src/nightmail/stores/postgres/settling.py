"""Settles deliveries of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from nightmail.clock import Clock
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.store import Settlement
from nightmail.stores.postgres.connect import Connection
from nightmail.stores.postgres.leases import Leases, Names, UnderLease
from nightmail.stores.postgres.moments import duration
from nightmail.stores.sql.statements import Statement

_ZERO: Final = timedelta(0)


class Settling(UnderLease):
    """Messages: done, dead or brought back."""

    names = Names("message", "lock_leased", "still_leased", "extend", "hold", "ack")

    def __init__(self, statements: Mapping[str, Statement], clock: Clock, *, keep_delivered: bool) -> None:
        super().__init__(statements, clock)
        self._keep_delivered = keep_delivered

    async def _write(self, connection: Connection, batch: Sequence[Settlement]) -> set[int]:
        if not self._keep_delivered and all(isinstance(settlement.outcome, Done) for settlement in batch):
            leases = Leases.of([settlement.delivery for settlement in batch])
            values = {**leases.values, "now": self._clock.now()}
            found = await self._fetch(connection, "settle_done", values)
        else:
            found = await self._fetch(connection, "settle", self._mixed(batch))
        return set(found[0]["ids"])

    def _mixed(self, batch: Sequence[Settlement]) -> dict[str, Any]:
        ordered = sorted(batch, key=lambda settlement: settlement.delivery.id)
        ending = [settlement for settlement in ordered if isinstance(settlement.outcome, Done | Dead)]
        back = [settlement for settlement in ordered if not isinstance(settlement.outcome, Done | Dead)]
        given_up = [
            settlement.outcome if isinstance(settlement.outcome, Dead) else None for settlement in ending
        ]
        return {
            **self._ending(),
            "ids": [settlement.delivery.id for settlement in ending],
            "tokens": [settlement.delivery.token for settlement in ending],
            "reasons": [None if dead is None else dead.reason for dead in given_up],
            "errors": [None if dead is None else dead.error for dead in given_up],
            "ran": [dead is not None and dead.ran for dead in given_up],
            **brought_back(back),
        }

    def _ending(self) -> dict[str, Any]:
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
