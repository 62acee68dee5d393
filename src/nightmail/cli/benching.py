"""Measures the store."""

from __future__ import annotations

from typing import Annotated

import typer

from nightmail.cli import audit
from nightmail.cli.progress import counting
from nightmail.cli.running import Session, on_store
from nightmail.operations import benchmark
from nightmail.wording import count


@on_store(json=True, changes=True)
async def bench(
    session: Session,
    messages: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many messages.")] = 2_000,
    size: Annotated[int, typer.Option(min=0, max=1_000_000, help="How many bytes each body has.")] = 100,
    workers: Annotated[int, typer.Option(min=1, max=1000, help="How many handlers run at once.")] = 10,
) -> None:
    """Measure this store from here, in a queue of its own that is removed afterwards."""
    async with session.chosen.ready(adopt=True) as store:
        with counting("published and handled", 2 * messages) as counter:
            result = await benchmark.bench(
                store, messages=messages, body_bytes=size, workers=workers, progress=counter
            )
        audit.changed(session, "bench", count=result.messages)
    if session.out.as_json:
        session.out.json(result)
        return
    session.out.facts(
        {
            "store": session.chosen.where,
            "messages": f"{count(result.messages)} of {count(result.body_bytes)} bytes",
            "published": f"{result.published_per_second:,.0f} a second, in batches of {benchmark.BATCH}",
            "handled": f"{result.handled_per_second:,.0f} a second, by one worker",
            "one publish": f"{result.publish_seconds * 1000:.1f} ms",
            "publish to handler": f"{result.delivery_seconds * 1000:.1f} ms, when idle",
        }
    )
