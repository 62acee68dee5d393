"""What must not be told: bodies, headers, names and keys of messages, and the password."""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from nightmail.errors import StoreUnavailable
from nightmail.store import Blocking
from nightmail.stores.mysql import MySQLStore
from nightmail.stores.mysql.text import lifted
from nightmail.testing.conformance.build import QUEUE, message
from tests.stores.mysql.support import open_store, run, sqlalchemy_url
from tests.stores.support import claim

pytestmark = pytest.mark.mysql

SECRETS = ("the body", "the header", "the timer", "the key")
REFUSE = (
    "create trigger refuses before insert on nightmail_messages for each row signal sqlstate '45000' "
    "set message_text = 'no'"
)


def secret(**options: Any) -> Any:
    return message(
        SECRETS[0].encode(),
        headers={"h": SECRETS[1]},
        timer_id=SECRETS[2],
        ordering_key=SECRETS[3],
        **options,
    )


def assert_untold(said: str) -> None:
    for word in SECRETS:
        assert word not in said
        assert word.encode().hex() not in said


# --------------------------------------------------------------------------- in a caller's session


@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql"])
async def test_an_error_in_a_callers_session_quotes_nothing_of_the_message(
    mysql_url: str, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_async_engine(sqlalchemy_url(mysql_url, driver), hide_parameters=True, echo=True)
    async with open_store(mysql_url) as store:
        await run(mysql_url, REFUSE)
        with caplog.at_level(logging.DEBUG):
            async with engine.connect() as own:
                for refused in (secret(), secret(on_conflict="replace")):
                    with pytest.raises(DBAPIError) as raised:
                        await store.publish(refused, transaction=own)
                    assert_untold(str(raised.value))
                with pytest.raises(DBAPIError) as raised:
                    await store.publish_batch([message(SECRETS[0].encode())], transaction=own)
                assert_untold(str(raised.value))
                await store.cancel(QUEUE, SECRETS[2], transaction=own)
        assert "nightmail_messages" in caplog.text
        assert_untold(caplog.text)
    await engine.dispose()


async def test_an_error_in_a_synchronous_session_quotes_nothing_of_the_message(mysql_url: str) -> None:
    engine = create_engine(sqlalchemy_url(mysql_url, "pymysql"), hide_parameters=True)
    async with open_store(mysql_url) as store:
        await run(mysql_url, REFUSE)
        with Session(engine) as session, pytest.raises(DBAPIError) as raised:
            await store.publish(secret(), transaction=Blocking(session))
        assert_untold(str(raised.value))
    engine.dispose()


@pytest.mark.parametrize("settings", ["", "set sql_mode = 'NO_BACKSLASH_ESCAPES'", "set names gbk"])
async def test_what_is_published_through_sqlalchemy_comes_through_whatever_its_session_is_set_to(
    mysql_url: str, settings: str
) -> None:
    awkward = bytes(range(256)) + "'\\%s%%(x)s\u4e2d\U0001f600".encode()
    engine = create_async_engine(sqlalchemy_url(mysql_url))
    async with open_store(mysql_url) as store:
        async with engine.begin() as own:
            if settings:
                await own.execute(text(settings))
            name = "it's 100% \\ \U0001f600"
            odd = message(awkward, timer_id=name, headers={"h": name}, ordering_key=name)
            await store.publish(odd, transaction=own)

        (delivery,) = await claim(store)
        assert (delivery.body, delivery.timer_id, delivery.ordering_key) == (awkward, name, name)
        assert delivery.headers == {"h": name}
    await engine.dispose()


def test_values_are_lifted_out_of_a_statement() -> None:
    assert lifted("select '%', _utf8mb4 x'c3a4', x'', concat(a, x'00') from prefix'00'") == (
        "select '%%', convert(unhex(%s) using utf8mb4), unhex(%s), concat(a, unhex(%s)) from prefix'00'",
        ("c3a4", "", "00"),
    )


# ------------------------------------------------------------------------------------ the password

PASSWORD = "do not tell"


@asynccontextmanager
async def rogue_server(
    plugin: bytes, prompt: bytes = b"", *, greeted: bytes = b"mysql_native_password"
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that asks for the password in clear text; its port, and what it received."""
    received: list[bytes] = []

    def packet(number: int, data: bytes) -> bytes:
        return struct.pack("<I", len(data))[:3] + bytes([number]) + data

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        capabilities = 0x000FF7DF & ~0x0800  # No TLS.
        greeting = (
            b"\x0a8.0.30\x00"
            + struct.pack("<I", 1)
            + b"12345678\x00"
            + struct.pack("<H", capabilities & 0xFFFF)
            + b"\x2d"
            + struct.pack("<H", 2)
            + struct.pack("<H", capabilities >> 16)
            + bytes([21])
            + b"\x00" * 10
            + b"123456789012\x00"
            + greeted
            + b"\x00"
        )
        writer.write(packet(0, greeting))
        received.append(await reader.read(4096))
        writer.write(packet(2, b"\xfe" + plugin + b"\x00" + prompt))
        received.append(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], received


@pytest.mark.parametrize(
    ("plugin", "prompt"), [(b"mysql_clear_password", b""), (b"dialog", b"\x04Password: ")]
)
async def test_a_server_that_asks_for_the_password_in_clear_text_does_not_get_it(
    plugin: bytes, prompt: bytes
) -> None:
    async with rogue_server(plugin, prompt) as (port, received):
        store = MySQLStore(f"mysql://user:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}/shop")
        await store.open()
        with pytest.raises(StoreUnavailable, match="in clear text") as raised:
            await store.ping()
        await store.close()

        assert PASSWORD not in str(raised.value)
        assert not any(PASSWORD.encode() in each for each in received)


@pytest.mark.parametrize("greeted", [b"mysql_native_password", b"mysql_clear_password", b"dialog", b""])
@pytest.mark.parametrize(
    ("plugin", "prompt"), [(b"mysql_clear_password", b""), (b"dialog", b"\x04Password: ")]
)
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql"])
async def test_it_does_not_get_it_from_an_engine_either(
    driver: str, tls: bool, plugin: bytes, prompt: bytes, greeted: bytes
) -> None:
    async with rogue_server(plugin, prompt, greeted=greeted) as (port, received):
        # Asked for TLS, a driver may do without when the server offers none.
        engine = create_async_engine(
            URL.create(f"mysql+{driver}", "user", PASSWORD, "127.0.0.1", port, "shop"),
            connect_args={"ssl": ssl.create_default_context()} if tls else {},
        )
        store = MySQLStore(engine)
        await store.open()
        with pytest.raises(StoreUnavailable) as raised:
            await store.ping()
        await store.close()
        await engine.dispose()

        assert PASSWORD not in str(raised.value)
        assert not any(PASSWORD.encode() in each for each in received)


async def test_the_engines_own_connections_are_as_they_were(mysql_url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(mysql_url, "aiomysql"))
    store = MySQLStore(engine)
    await store.open()
    await store.ping()
    async with engine.connect() as own:
        raw = await own.get_raw_connection()
        assert type(raw.driver_connection).__module__.startswith("aiomysql")
    await store.close()
    await engine.dispose()


@pytest.mark.parametrize(
    "query",
    [
        "ssl=false&ssl_ca=/ca.pem",
        "ssl=off&ssl_check_hostname=true",
        "ssl=true&ssl=false",
        "ssl=perhaps",
        "ssl_key=/key.pem",
        "connect_timeout=soon",
    ],
)
def test_options_of_a_url_that_contradict_each_other_are_refused(query: str) -> None:
    with pytest.raises(ValueError, match="MySQL URL"):
        MySQLStore(f"mysql://root:secret@localhost/shop?{query}")


# ------------------------------------------------------------------------ who could not be reached


@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql", None])
async def test_an_error_of_connecting_names_the_place_and_the_reason_but_not_the_password(
    mysql_url: str, driver: str | None
) -> None:
    with_password = mysql_url.replace("root@", "stranger:hush-hush@")
    database = mysql_url.rpartition("/")[2]
    port = mysql_url.rpartition(":")[2].partition("/")[0]
    for url, reason in (
        (with_password, "Access denied for user 'stranger'"),
        (mysql_url.replace(database, "nowhere"), "Unknown database 'nowhere'"),
        (mysql_url.replace("127.0.0.1", "no.such.host.invalid"), "no.such.host.invalid"),
        (mysql_url.replace(port, "1"), "127.0.0.1"),
    ):
        engine = None if driver is None else create_async_engine(sqlalchemy_url(url, driver))
        store = MySQLStore(url if engine is None else engine)
        await store.open()

        with pytest.raises(StoreUnavailable) as raised:
            await store.ping()

        told = str(raised.value)
        assert reason in told
        assert (
            f"{url.rpartition('@')[2].partition('/')[0]}, database {url.rpartition('/')[2]!r}, as user"
            in told
        )
        assert "hush-hush" not in told
        assert raised.value.__cause__ is not None
        await store.close()
        if engine is not None:
            await engine.dispose()
