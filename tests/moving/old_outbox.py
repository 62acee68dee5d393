"""faststream-outbox as its users' databases know it: its tables, and what its publishers and workers say to them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from nightmail.moving import Mover, OldTables
from nightmail.store import FullStore
from nightmail.stores import open_store

BOTH = OldTables(dead="outbox_dlq")

SCHEMA = """
    create table outbox (
        id bigserial primary key,
        queue varchar(255) not null,
        payload bytea not null,
        headers jsonb,
        attempts_count bigint not null default 0,
        deliveries_count bigint not null default 0,
        created_at timestamptz not null default now(),
        next_attempt_at timestamptz not null default now(),
        first_attempt_at timestamptz,
        last_attempt_at timestamptz,
        acquired_at timestamptz,
        acquired_token uuid,
        timer_id varchar(255),
        constraint outbox_lease_ck check ((acquired_token is null) = (acquired_at is null))
    );
    create index outbox_pending_idx on outbox (queue, next_attempt_at, id) where acquired_token is null;
    create index outbox_leased_idx on outbox (queue, next_attempt_at, id) where acquired_token is not null;
    create unique index outbox_timer_id_uq on outbox (queue, timer_id) where timer_id is not null;
    create table outbox_dlq (
        id bigserial primary key,
        original_id bigint not null,
        queue varchar(255) not null,
        payload bytea not null,
        headers jsonb,
        deliveries_count bigint not null,
        created_at timestamptz not null,
        failed_at timestamptz not null default now(),
        failure_reason varchar(64) not null,
        last_exception varchar,
        timer_id varchar(255)
    );
    create index outbox_dlq_queue_failed_idx on outbox_dlq (queue, failed_at);
"""

CLAIM = """
    with pending as (
        select id from outbox
        where queue = $1 and next_attempt_at <= now() and acquired_token is null
        order by next_attempt_at, id limit $2 for update skip locked
    ), expired as (
        select id from outbox
        where queue = $1 and next_attempt_at <= now() and acquired_token is not null
          and acquired_at < now() - make_interval(secs => $3)
        order by next_attempt_at, id limit $2 for update skip locked
    )
    update outbox set acquired_at = now(), acquired_token = $4, deliveries_count = deliveries_count + 1
    where id in (select id from pending union all select id from expired limit $2)
    returning id, payload
"""


class Old:
    """One process of the old system, on a connection of its own."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def publish(
        self,
        payload: bytes = b"{}",
        queue: str = "orders",
        *,
        headers: Mapping[str, Any] | None = None,
        at: datetime | None = None,
        timer_id: str | None = None,
    ) -> int | None:
        """A row, unless its timer id is taken; a row as raw SQL might write it when there are no headers."""
        id_: int | None = await self.connection.fetchval(
            "insert into outbox (queue, payload, headers, next_attempt_at, timer_id) "
            "values ($1, $2, $3, coalesce($4, now()), $5) "
            "on conflict (queue, timer_id) where timer_id is not null do nothing returning id",
            *(queue, payload, None if headers is None else json.dumps(headers), at, timer_id),
        )
        return id_

    async def claim(
        self, queue: str = "orders", *, limit: int = 10, lease: timedelta = timedelta(seconds=60)
    ) -> tuple[UUID, list[Any]]:
        """What a worker takes, and the token under which it holds that."""
        token = uuid4()
        return token, await self.connection.fetch(CLAIM, queue, limit, lease.total_seconds(), token)

    async def done(self, id_: int, token: UUID) -> bool:
        """Whether the row was still this worker's, and is gone now."""
        gone = await self.connection.fetchval(
            "delete from outbox where id = $1 and acquired_token = $2 returning id", id_, token
        )
        return gone is not None

    async def cancel(self, timer_id: str, queue: str = "orders") -> bool:
        """Whether this call removed the timer."""
        gone = await self.connection.fetchval(
            "delete from outbox where queue = $1 and timer_id = $2 and acquired_token is null returning id",
            *(queue, timer_id),
        )
        return gone is not None

    async def bury(self, id_: int, reason: str, error: str | None) -> None:
        """The row goes to the dead letters."""
        await self.connection.execute(
            "with deleted as (delete from outbox where id = $1 returning *) "
            "insert into outbox_dlq (original_id, queue, payload, headers, deliveries_count, created_at, timer_id, "
            "failure_reason, last_exception) "
            "select id, queue, payload, headers, deliveries_count, created_at, timer_id, $2, $3 from deleted",
            *(id_, reason, error),
        )

    async def age_leases(self, by: timedelta) -> None:
        """As if every lease had been taken so much earlier."""
        await self.connection.execute("update outbox set acquired_at = acquired_at - $1::interval", by)

    async def ids(self) -> list[int]:
        """The rows that are there."""
        return [row["id"] for row in await self.connection.fetch("select id from outbox order by id")]


@asynccontextmanager
async def old_process(url: str) -> AsyncIterator[Old]:
    connection = await asyncpg.connect(url)
    try:
        yield Old(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def both(url: str) -> AsyncIterator[tuple[Old, FullStore]]:
    """The old tables and ours in one database."""
    store = open_store(url)
    async with old_process(url) as old:
        await old.connection.execute(SCHEMA)
        await store.open()
        try:
            await store.migrate()
            yield old, store
        finally:
            await store.close()


@asynccontextmanager
async def moving(url: str, store: FullStore, old: OldTables = BOTH, **options: Any) -> AsyncIterator[Mover]:
    async with Mover(url, store, old, **options) as mover:
        yield mover
