"""The brokers that messages are relayed to keep their word: they come up, come back, and leave nothing behind."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import nats
import pytest

from testkit.processes import Process
from testkit.pytest_plugin import provide
from testkit.servers import NotOurs, ServerFailed
from testkit.servers.nats import Nats
from testkit.servers.rabbitmq import RabbitMQ
from testkit.waiting import wait_until

pytestmark = pytest.mark.compat

QUEUE = "kept"


@pytest.fixture(scope="module")
def private_rabbitmq() -> Iterator[RabbitMQ]:
    """A private server, whatever the environment says: these tests are rough with it."""
    with provide(RabbitMQ()) as server:
        yield server


@pytest.fixture(scope="module")
def private_nats() -> Iterator[Nats]:
    with provide(Nats()) as server:
        yield server


@pytest.fixture(params=["rabbitmq", "nats"])
def server(request: pytest.FixtureRequest) -> RabbitMQ | Nats:
    found: RabbitMQ | Nats = request.getfixturevalue(f"private_{request.param}")
    found.revive()
    return found


def test_what_it_has_taken_survives_kill_9_on_the_same_port(server: RabbitMQ | Nats) -> None:
    url, processes = server.url, server.processes
    send(server, b"before")

    server.kill()

    assert not server.running
    assert alive(processes) == []

    server.start()

    assert server.url == url
    assert receive(server) == [b"before"]


def test_a_stopped_server_comes_back_with_its_data(server: RabbitMQ | Nats) -> None:
    url, processes = server.url, server.processes
    send(server, b"before")

    server.stop()

    assert not server.running
    assert alive(processes) == []

    server.start()

    assert server.url == url
    assert receive(server) == [b"before"]


def test_a_paused_server_can_be_revived(server: RabbitMQ | Nats) -> None:
    server.pause()
    assert all(process.stopped for process in server.processes)

    server.revive()

    send(server, b"after")
    assert receive(server) == [b"after"]


def test_it_listens_on_the_loopback_only(server: RabbitMQ | Nats) -> None:
    ports = {server.port, *(server.node_ports if isinstance(server, RabbitMQ) else ())}
    found = {(address, port) for address, port in listening() if port in ports}

    assert {port for _, port in found} == ports
    assert {address for address, _ in found} <= {"0100007F", "00000000000000000000000001000000"}


@pytest.mark.parametrize("kind", [RabbitMQ, Nats])
def test_a_server_of_the_users_is_only_used(
    kind: type[RabbitMQ | Nats], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kind.url_variable(), "theirs://127.0.0.1:9/")

    theirs = kind.from_environment()

    assert not theirs.ours
    with pytest.raises(NotOurs, match=kind.url_variable()):
        theirs.kill()
    with pytest.raises(ServerFailed, match="not ready"):
        theirs.start(within=0.1)


# Last: one that was closed takes its time to be there again.


def test_close_leaves_nothing(server: RabbitMQ | Nats) -> None:
    directory, processes = server.directory, server.processes
    assert (directory / "data").is_dir()

    server.close()

    assert not directory.exists()
    assert alive(processes) == []


# Tools


def send(server: RabbitMQ | Nats, body: bytes) -> None:
    """Send one message, and return once the server has it on disk."""
    if isinstance(server, Nats):
        asyncio.run(_to_nats(server.url, body))
        return
    asyncio.run(_to_rabbitmq(server.url, body))
    # It confirms that a queue exists before it has written that down.
    wait_until(lambda: _is_written(server.data), within=60, what="the queue in RabbitMQ's tables")


def _is_written(data: Path) -> bool:
    tables = (*data.rglob("rabbit_durable_queue.DC?"), *data.rglob("*.LOG"))
    for name, content in [(file.suffix, file.read_bytes()) for file in tables]:
        _, found, rest = content.rpartition(QUEUE.encode())
        # What the log says of a queue is undone at a restart, unless the decision to commit follows.
        if found and (name != ".LOG" or b"committed" in rest):
            return True
    return False


def receive(server: RabbitMQ | Nats) -> list[bytes]:
    """Everything it has, taken."""
    return asyncio.run(_from_rabbitmq(server.url) if isinstance(server, RabbitMQ) else _from_nats(server.url))


async def _to_rabbitmq(url: str, body: bytes) -> None:
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        await channel.declare_queue(QUEUE, durable=True)
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, routing_key=QUEUE)


async def _from_rabbitmq(url: str) -> list[bytes]:
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        queue = await channel.get_queue(QUEUE)
        bodies = []
        while (message := await queue.get(no_ack=True, fail=False)) is not None:
            bodies.append(message.body)
        return bodies


async def _to_nats(url: str, body: bytes) -> None:
    connection = await nats.connect(url)
    js = connection.jetstream()
    await js.add_stream(name=QUEUE, subjects=[QUEUE])
    await js.publish(QUEUE, body)
    await connection.close()


async def _from_nats(url: str) -> list[bytes]:
    connection = await nats.connect(url)
    js = connection.jetstream()
    waiting = (await js.stream_info(QUEUE)).state
    bodies = [
        (await js.get_msg(QUEUE, seq)).data or b""
        for seq in range(waiting.first_seq, waiting.first_seq + waiting.messages)
    ]
    await js.purge_stream(QUEUE)
    await connection.close()
    return bodies


def alive(processes: list[Process]) -> list[Process]:
    return [process for process in processes if process.alive]


def listening() -> Iterator[tuple[str, int]]:
    """What the machine listens on: the address as /proc writes it, and the port."""
    for table in "/proc/net/tcp", "/proc/net/tcp6":
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A":
                address, _, port = local.partition(":")
                yield address, int(port, 16)
