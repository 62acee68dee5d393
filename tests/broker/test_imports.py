"""What a service loads by importing the package, and what it does not."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

import nightmail


def run(code: str) -> str:
    """What a fresh interpreter prints: this one has loaded everything."""
    return subprocess.run(
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True
    ).stdout


def test_a_service_does_not_load_the_test_broker() -> None:
    assert (
        run("import nightmail, sys; print([name for name in sys.modules if 'nightmail.testing' in name])")
        == "[]\n"
    )


@pytest.mark.parametrize(
    "loaded", ["nightmail", "nightmail.cli.app", "nightmail.stores.sqlite", "nightmail.engine.worker"]
)
def test_what_does_without_faststream_does_not_load_it(loaded: str) -> None:
    assert run(f"import sys, {loaded}; print('faststream' in sys.modules)") == "False\n"


def test_every_public_name_is_there_and_listed() -> None:
    said = run(
        """
        import nightmail
        listed = dir(nightmail)
        print([name for name in nightmail.__all__ if name not in listed or getattr(nightmail, name) is None])
        """
    )

    assert said == "[]\n"


def test_try_it_out_finds_the_test_broker_that_was_not_loaded() -> None:
    said = run(
        """
        import asyncio
        from faststream.asgi.factories.asyncapi.try_it_out import TryItOutProcessor
        from nightmail import OutboxBroker

        broker = OutboxBroker("memory://", logger=None)

        @broker.subscriber("greetings")
        async def greet(name: str) -> str:
            return f"hello {name}"

        async def main():
            asked = {"channelName": "greetings", "message": {"message": "Ada"}, "options": {}}
            answer = await TryItOutProcessor(broker).process(asked)
            print(answer.status_code, answer.body.decode())

        asyncio.run(main())
        """
    )

    assert said == '200 "hello Ada"\n'


def test_the_test_broker_has_one_class_wherever_it_is_imported_from() -> None:
    said = run(
        """
        from nightmail import TestOutboxBroker
        from nightmail.testing import TestOutboxBroker as same
        print(TestOutboxBroker is same)
        """
    )

    assert said == "True\n"


def test_a_misspelled_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'TestInboxBroker'"):
        nightmail.TestInboxBroker  # type: ignore[attr-defined]  # noqa: B018 - asking is the test
