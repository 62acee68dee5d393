"""The rights that docs/stores.md gives publishers, workers and operators: tests run with these and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

ROLES: Final = ("publisher", "worker", "operator")
PASSWORD: Final = "password"
_PAGE: Final = Path(__file__).parents[2] / "docs" / "stores.md"


def grants(store: str, role: str, *, to: str, only_the_least: bool = False) -> list[str]:
    """The statements in this store's section that make a user what this role is.

    `only_the_least`: without those that are said to be for a feature, after a comment.
    """
    blocks = re.findall(r"^```sql\n(.*?)^```", _section(store), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if f" to {role};" in block]
    if only_the_least:
        block = block.partition("\n--")[0]
    lines = [line for line in block.splitlines() if line and not line.startswith("--")]
    return [re.sub(rf" to {role};$", f" to {to}", line) for line in lines]


def acl_rules(*roles: str) -> list[str]:
    """The rules of `ACL SETUSER` for an account that is all of these."""
    accounts = {
        line.split()[2]: line.split()[3:]
        for line in _section("Redis").splitlines()
        if line.strip().startswith("ACL SETUSER")
    }
    # Each rule once, where it comes first: a second `-@all` would take away what was given before it.
    return list(dict.fromkeys(rule for role in roles for rule in accounts[role]))


def url_as(url: str, user: str) -> str:
    """The same place, for this user."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}").geturl()


def _section(store: str) -> str:
    (found,) = re.findall(
        rf"^## {store}\n(.*?)(?=^## |\Z)", _PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return str(found)
