"""The incident is played as its page shows it, on every store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.console import play

PAGE = (Path(__file__).parents[2] / "docs" / "incident.md").read_text("utf-8")
SHOWN = "sqlite:///shop.db\n"


def on(url: str) -> str:
    """The page, about this store."""
    assert PAGE.count(f"NIGHTMAIL_URL={SHOWN}") == 1
    return PAGE.replace(f"NIGHTMAIL_URL={SHOWN}", f"NIGHTMAIL_URL='{url}'\n")


@pytest.mark.sqlite
def test_the_incident_on_sqlite(tmp_path: Path) -> None:
    play(PAGE, tmp_path)


@pytest.mark.postgres
def test_the_incident_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    play(on(postgres_url), tmp_path)


@pytest.mark.mysql
def test_the_incident_on_mariadb(mysql_url: str, tmp_path: Path) -> None:
    play(on(mysql_url), tmp_path)


@pytest.mark.redis
def test_the_incident_on_redis(redis_url: str, tmp_path: Path) -> None:
    play(on(redis_url), tmp_path)
