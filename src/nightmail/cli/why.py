"""Why a message does not run."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from nightmail.cli.exit_codes import NOT_FOUND, Refusal
from nightmail.cli.messages import check_id
from nightmail.cli.output import plain
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import safe
from nightmail.operations import why as asking
from nightmail.operations.reasons import Unknown, WhyReason


@on_store(json=True)
async def why(
    session: Session, id_: Annotated[int, typer.Argument(metavar="ID", help="A message's id.")]
) -> None:
    """Say why a message does not run: everything that holds it back, or what became of it."""
    check_id(id_)
    async with session.chosen.ready() as store:
        reasons = await asking.why(store, id_)
    if reasons == [Unknown()]:
        raise Refusal(f"{id_}: {reasons[0].text}", NOT_FOUND)
    if session.out.as_json:
        session.out.json([_plain(each) for each in reasons])
        return
    for reason in reasons:
        session.out.say(safe(reason.text, 2000))


def _plain(reason: WhyReason) -> dict[str, Any]:
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(reason).__name__).lower()
    return {"kind": kind, **plain(reason), "text": reason.text}
