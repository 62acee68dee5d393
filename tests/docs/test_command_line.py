"""The page about the command line runs as it stands: its commands, in order, say what it shows."""

from __future__ import annotations

import re
from pathlib import Path

from nightmail.cli import exit_codes
from tests.docs.console import play

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text("utf-8")


def test_every_command_says_what_the_page_shows(tmp_path: Path) -> None:
    play(PAGE, tmp_path)


def test_every_exit_code_is_on_the_page() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    codes = {code for code in codes if code <= 130}

    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == codes
