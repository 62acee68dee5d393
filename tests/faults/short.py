"""The short tier: a few faults on each store, enough to see that the suite works and that the promises hold."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from faults.figures import Figures
from faults.journal import Journal
from faults.place import Place
from faults.proxy import Proxy
from faults.run import run
from faults.scenarios import SCENARIOS
from faults.scenarios.scenario import Scenario
from nightmail import Message, PublishUncertain, open_store
from nightmail.errors import StoreUnavailable
from nightmail.store import FullStore

SEED: Final = 1
BULK: Final = 200.0
KILLS: Final = 3
LOST_REPLIES: Final = 10
PAUSES: Final = 3
"""Two queues, then an ordering key."""
PUBLISHER_PAUSE: Final = 0.075
"""Between two messages, in seconds: the backlog lasts as long as the pauses, and little of it is left then."""
PUBLISHES: Final = 30


async def kills(place: Place, directory: Path) -> None:
    """Workers and publishers are killed."""
    found = await clean(SCENARIOS["kills"], place, directory, faults=KILLS)
    assert found.faults["worker killed"] + found.faults["publisher killed"] == KILLS


async def lost_replies(place: Place, directory: Path) -> None:
    """Replies are lost, those of commits above all."""
    found = await clean(SCENARIOS["lost-replies"], place, directory, faults=LOST_REPLIES)
    assert sum(found.faults.values()) >= LOST_REPLIES


async def paused(place: Place, directory: Path) -> None:
    """An operator pauses queues and an ordering key of eight processes under load."""
    scenario = SCENARIOS["paused"]
    publisher = {**scenario.publisher, "pause": PUBLISHER_PAUSE}
    found = await clean(replace(scenario, publisher=publisher), place, directory, faults=PAUSES)
    assert found.faults == {"queue paused": PAUSES - 1, "key paused": 1}


async def clean(scenario: Scenario, place: Place, directory: Path, *, faults: int) -> Figures:
    """The figures of a run that found nothing."""
    found, report = await run(scenario, place, directory, seed=SEED, faults=faults, bulk=BULK)
    assert not report, report
    assert found.messages > 0
    return found


async def uncertain_publishes(place: Place, directory: Path) -> None:
    """A publish that may have been stored raises `PublishUncertain`; with the same timer id it is safe to repeat."""
    proxy = Proxy(place.address, SEED, Journal(directory / "journal.jsonl", "nemesis"))
    direct, store = open_store(place.url), open_store(place.through(await proxy.door("publisher")))
    await direct.open()
    await direct.migrate()
    await store.open()
    uncertain = stored = 0
    names = [f"timer-{number}" for number in range(PUBLISHES)]
    try:
        for name in names:
            message = Message(queue="orders", body=name.encode(), timer_id=name)
            proxy.rates = {"lost reply": 0.5}
            with suppress(StoreUnavailable):
                try:
                    await store.publish(message)
                except PublishUncertain:
                    uncertain += 1
                    stored += name in await bodies(direct)
                    raise
                except StoreUnavailable:
                    assert name not in await bodies(direct)
                    raise
            proxy.rates = {}
            await store.publish(message)
        assert sorted(await bodies(direct)) == sorted(names)
    finally:
        await store.close()
        await direct.close()
        await proxy.close()
    assert uncertain >= stored > 0


async def bodies(store: FullStore) -> list[str]:
    """Of every message that waits."""
    return [message.body.decode() for message in await store.peek(limit=1000)]
