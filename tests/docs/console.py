"""Plays a page: its commands, in order, say what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

BLOCK: Final = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE: Final = re.compile(r"^# (\w+\.py)\n")
VARIES: Final = "…"


def play(page: str, directory: Path) -> None:
    """Run the `console` blocks of a page in a shell, and compare what each command says.

    A `python` block is run, or saved if its first line is the name of a file.
    """
    text, expected = _script(page)
    environment = {name: value for name, value in os.environ.items() if name != "NIGHTMAIL_URL"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"

    ran = subprocess.run(
        ["/bin/bash", "-c", f"exec 2>&1\n{text}"],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    said = ran.stdout.split(">>>\n")[1:]
    assert len(said) == len(expected) > 10, ran.stdout
    for each, shown in zip(said, expected, strict=True):
        assert _matches(each, shown), f"{each!r} is not {shown!r}"


def _script(page: str) -> tuple[str, list[str]]:
    """The page as one shell script, which says a mark before each command; and what each command should say."""
    lines, expected = [], []
    for kind, block in BLOCK.findall(page):
        if kind == "python":
            file = FILE.match(block)
            into = f"cat >{file[1]}" if file else "python - >python.log 2>&1"
            lines.append(f"{into} <<'END_OF_SNIPPET'\n{block}\nEND_OF_SNIPPET")
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, said = part.partition("\n")
            # The exit code must survive the mark, for `echo $?`.
            lines.append(f"code=$?; echo '>>>'; (exit $code); {command}")
            expected.append(said)
    return "\n".join(lines), expected


def _matches(said: str, shown: str) -> bool:
    return re.fullmatch(".*?".join(map(re.escape, shown.split(VARIES))), said) is not None
