"""What is wrong, and what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from nightmail.cli.exit_codes import line_of
from nightmail.cli.output import Output, plain
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import positive_duration, safe
from nightmail.errors import StoreUnavailable
from nightmail.findings import Code, Finding, Severity
from nightmail.operations.doctor import diagnose
from nightmail.store import FullStore
from nightmail.wording import moment

_COLUMNS = ("severity", "code", "what", "evidence", "consequence", "remedy", "runbook")
_CODES = {Severity.NOTICE: 0, Severity.WARNING: 1, Severity.FATAL: 2}
"""How the command ends: see `docs/command-line.md`."""


@on_store(json=True)
async def doctor(
    session: Session,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Only what is fatal and stays until it is put right: for the start of a service."
        ),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C; tell what changes.")
    ] = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="With --watch: how often to look.")] = "10s",
) -> int:
    """Find what is wrong: with queues, workers, dead letters and the server. Each finding says what to do.

    Ends with 0 if there is nothing worse than a notice, 1 for warnings, 2 if something is fatal.
    """
    seconds = positive_duration(every).total_seconds()
    async with session.chosen.opened() as store:
        found = await _findings(store, strict=strict)
        if watch:
            await _watch(session, store, found, seconds, strict=strict)
    if session.out.as_json:
        session.out.json([_plain(each) for each in found])
    elif not found:
        session.out.note("nothing is wrong" + (" that stays until it is put right" if strict else ""))
    elif session.out.on_terminal:
        _print_blocks(session.out, found)
    else:
        session.out.table(_COLUMNS, [_row(each) for each in found])
    return max((_CODES[each.severity] for each in found), default=0)


async def _findings(store: FullStore, *, strict: bool) -> list[Finding]:
    found = await diagnose(store)
    return [each for each in found if not strict or (each.lasting and each.severity is Severity.FATAL)]


async def _watch(
    session: Session, store: FullStore, found: list[Finding], seconds: float, *, strict: bool
) -> None:
    """Tell what changes, until interrupted. An outage ends nothing: it is told, too."""
    known: dict[tuple[Code, tuple[str, ...]], Finding] = {}
    while True:
        # By what it is about: the texts have numbers that change at each look.
        now = {(each.code, each.subject): each for each in found}
        for key, each in now.items():
            if change := _change(known.get(key), each):
                _tell(session.out, change, each)
        for key, each in known.items():
            if key not in now:
                _tell(session.out, "gone", each)
        known = now
        await asyncio.sleep(seconds)
        try:
            found = await _findings(store, strict=strict)
        except StoreUnavailable as error:
            session.out.warn(line_of(error, session.chosen.where))


def _change(before: Finding | None, now: Finding) -> str | None:
    """What became of a finding since the last look; `None`: nothing."""
    if before is None:
        return "found"
    if now.severity == before.severity:
        return None
    return "worse" if now.severity > before.severity else "better"


def _tell(out: Output, change: str, finding: Finding) -> None:
    now = datetime.now(UTC)
    if out.as_json:
        out.json({"at": now, "change": change, **_plain(finding)}, compact=True)
        return
    cells = (moment(now), change, *_row(finding)[:3], finding.remedy if change != "gone" else "-")
    out.say("\t".join(safe(cell, 1000) for cell in cells))


def _print_blocks(out: Output, found: Sequence[Finding]) -> None:
    for number, each in enumerate(found):
        if number:
            out.say("")
        out.say(f"{_name(each.severity).upper()}  {safe(each.what, 500)}")
        out.facts(
            {
                "  evidence": each.evidence,
                "  if nothing is done": each.consequence,
                "  what to do": each.remedy,
                "  more": each.runbook,
            }
        )


def _row(finding: Finding) -> list[str]:
    return [
        _name(finding.severity),
        finding.code.value,
        finding.what,
        finding.evidence,
        finding.consequence,
        finding.remedy,
        finding.runbook,
    ]


def _plain(finding: Finding) -> dict[str, Any]:
    shown = {"severity": _name(finding.severity), "lasting": finding.lasting, "runbook": finding.runbook}
    return {**plain(finding), **shown, "code": finding.code.value}


def _name(severity: Severity) -> str:
    return severity.name.lower()
