"""What the README says about installing holds of what is built from pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import metadata, version
from pathlib import Path
from typing import Any, Final

import nightmail

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_version_is_that_of_the_distribution() -> None:
    assert nightmail.__version__ == version("nightmail")


def test_every_extra_that_the_documentation_installs_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        extra
        for page in pages
        for extras in re.findall(r"nightmail\[([\w,-]+)\]", page.read_text("utf-8"))
        for extra in extras.split(",")
    }

    assert {"cli", "postgres"} <= named
    assert named <= PROJECT["optional-dependencies"].keys()


def test_the_redis_extra_brings_hiredis() -> None:
    # It packs the commands: ADR 0012.
    (client,) = PROJECT["optional-dependencies"]["redis"]

    assert client.startswith("redis[hiredis]")


def test_the_pages_that_a_package_index_links_to_are_in_this_repository() -> None:
    urls: dict[str, str] = PROJECT["urls"]
    home = urls["Homepage"]
    in_repository = {name: url.partition("/main/")[2] for name, url in urls.items() if "/main/" in url}

    assert urls.keys() >= {"Homepage", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(home) for url in urls.values())
    assert in_repository.keys() == {"Documentation", "Changelog"}
    assert all((ROOT / path).exists() for path in in_repository.values())
    built = metadata("nightmail").get_all("Project-URL", [])
    assert sorted(built) == sorted(f"{name}, {url}" for name, url in urls.items())
