"""Every finding and every alert has its page, every page a finding or an alert, and the commands on them exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from nightmail.cli.commands import app
from nightmail.findings import LASTING, RUNBOOKS, Code, Finding, Severity

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {page.stem: page.read_text("utf-8") for page in (DOCS / "runbooks").glob("*.md")}
INDEX = PAGES.pop("README")
ALERTS = dict(
    re.findall(
        r'- alert: (\w+)\n(?:(?!- alert).*\n)*? +runbook_url: "(.*)"',
        (DOCS / "telemetry.md").read_text("utf-8"),
    )
)
COMMANDS = get_command(app)


def test_there_is_a_page_for_each_finding_and_each_alert_and_no_other() -> None:
    assert set(PAGES) == {code.value for code in Code} | set(ALERTS)
    assert len(ALERTS) >= 9


def test_each_alert_leads_to_its_page() -> None:
    assert {name: f"{RUNBOOKS}/{name}.md" for name in ALERTS} == ALERTS


@pytest.mark.parametrize("code", Code)
def test_each_finding_leads_to_its_page(code: Code) -> None:
    finding = Finding(code=code, severity=Severity.NOTICE, what="", evidence="", consequence="", remedy="")

    assert finding.runbook == f"{RUNBOOKS}/{code.value}.md"
    assert finding.lasting is (code in LASTING)


def test_the_index_names_every_page() -> None:
    assert set(re.findall(r"\]\(([\w-]+)\.md\)", INDEX)) == set(PAGES)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_says_what_one_sees_why_what_to_do_and_one_command(name: str) -> None:
    page = PAGES[name]

    assert page.startswith(f"# {name}: ")
    places = [page.find(part) for part in ("\n**You see.** ", "\n**Why.** ", "\n**Do.** ", "\n```sh\n")]
    assert -1 not in places
    assert places == sorted(places)
    (block,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(block.splitlines()) == 1


@pytest.mark.parametrize("name", ["README", *sorted(PAGES)])
def test_every_command_of_ours_on_a_page_exists(name: str) -> None:
    page = INDEX if name == "README" else PAGES[name]

    for typed in re.findall(r"(?:`|^)nightmail ([^`\n]+)", page, re.MULTILINE):
        words = typed.split()
        command = COMMANDS
        while hasattr(command, "commands") and words:
            assert words[0] in command.commands, f"{name}: there is no `nightmail {typed}`"
            command = command.commands[words.pop(0)]
        options = {option for each in command.params for option in each.opts}
        assert {word for word in words if word.startswith("--")} <= options, f"{name}: `nightmail {typed}`"
