"""Links of the documentation lead somewhere, also where the README is shown outside of the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")
REPOSITORY = "https://github.com/nightmail-py/nightmail/blob/main/"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def links(page: Path) -> list[str]:
    return [target for target, _ in LINK.findall(page.read_text("utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    files = [
        ROOT / target.removeprefix(REPOSITORY) if target.startswith(REPOSITORY) else page.parent / target
        for target in links(page)
        if target.startswith(REPOSITORY) or "://" not in target
    ]

    assert [str(file) for file in files if not file.exists()] == []


def test_the_readme_has_no_relative_links() -> None:
    assert [target for target in links(ROOT / "README.md") if "://" not in target] == []
