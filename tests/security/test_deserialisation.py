"""A message is data: whatever it says it is, nothing of it runs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from nightmail import Message, NoRetry, OutboxBroker
from nightmail.outcome import Dead, Done, Reason
from nightmail.stores import open_store
from tests.broker.support import Heard, started
from tests.security import process_app


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._file,)


@pytest.fixture
def sentinel(tmp_path: Path) -> Path:
    """A file that is there if anything ran."""
    return tmp_path / "it-ran"


def test_the_bomb_goes_off_when_it_is_unpickled(sentinel: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(sentinel)))  # noqa: S301 - on purpose

    assert sentinel.exists()


CONTENT_TYPES = [
    None,
    "application/x-python-serialize",
    "application/python-pickle",
    "pickle",
    "application/json",
    "text/plain",
    "application/x-yaml",
]


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
async def test_nothing_in_a_message_is_ever_unpickled(sentinel: Path, content_type: str | None) -> None:
    heard, got = Heard(), []
    store = open_store("memory://")
    broker = OutboxBroker(store, logger=None, observer=heard, retry=NoRetry())

    @broker.subscriber("q")
    async def handle(body: Any) -> None:
        got.append(body)

    bomb = pickle.dumps(Bomb(sentinel))
    async with started(broker):
        headers = {} if content_type is None else {"content-type": content_type}
        # Past the broker, as one who can write to the database does.
        sent = await store.publish(Message(queue="q", body=bomb, headers=headers))
        await heard.until(lambda: len(heard.of(sent)) == 1)

    assert not sentinel.exists()
    (ended,) = heard.of(sent)
    if isinstance(ended, Dead):
        assert (ended.reason, got) == (Reason.UNDECODABLE, [])
    else:
        assert (ended, got) == (Done(), [bomb])


async def test_a_body_goes_to_a_childs_handler_as_the_bytes_it_is(sentinel: Path, tmp_path: Path) -> None:
    heard, bomb = Heard(), pickle.dumps(Bomb(sentinel))
    store = open_store("memory://")
    broker = OutboxBroker(store, logger=None, observer=heard, retry=NoRetry())
    broker.subscriber("q", run="process")(process_app.keep)
    kept = tmp_path / "kept"

    async with started(broker):
        sent = await store.publish(Message(queue="q", body=str(kept).encode() + b"\0" + bomb))
        await heard.until(lambda: len(heard.of(sent)) == 1)

    assert heard.of(sent) == [Done()]
    assert kept.read_bytes() == bomb
    assert not sentinel.exists()
