"""Plays a page: its commands, in order, say what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Final

BLOCK: Final = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE: Final = re.compile(r"^# (\w+\.py)\n")
LOOKS: Final = re.compile(r"nightmail (status|doctor|dead groups|workers|why)\b")
"""Commands that change nothing: a person looks again until they see what they wait for."""
VARIES: Final = "…"
MARK: Final = ">>>\n"
PATIENCE_SECONDS: Final = 60.0
LONGEST_SECONDS: Final = 380.0

# Commands come on a channel of their own, so that none of them reads the next one as its input. The exit code of each
# survives until the next, for `echo $?`.
SHELL: Final = f"""
exec 2>&1
code=0
while IFS= read -r -d '' -u {{commands}} command; do
    (exit "$code"); eval "$command"
    code=$?; echo '{MARK.strip()}'
done
"""


def play(page: str, directory: Path) -> None:
    """Run the `console` blocks of a page in a shell, and compare what each command says.

    A `python` block is run, or saved if its first line is the name of a file.
    """
    steps = list(_steps(page))
    assert len(steps) > 10
    with _shell(directory) as shell:
        for command, shown in steps:
            said = shell.run(command)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not _matches(said, shown) and LOOKS.match(command) and time.monotonic() < deadline:
                said = shell.run(command)
            assert _matches(said, shown), f"{command!r} says {said!r}, and not {shown!r}"


class Shell:
    """A shell that runs one command after the other."""

    def __init__(self, process: subprocess.Popen[str], commands: int) -> None:
        self._process = process
        self._commands = commands

    def run(self, command: str) -> str:
        """What this command says."""
        os.write(self._commands, command.encode() + b"\0")
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            if line == MARK:
                return said
            said += line
        raise AssertionError(f"the shell ended at {command!r}: {said!r}")


@contextmanager
def _shell(directory: Path) -> Iterator[Shell]:
    environment = {name: value for name, value in os.environ.items() if name != "NIGHTMAIL_URL"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    theirs, ours = os.pipe()
    process = subprocess.Popen(
        ["/bin/bash", "-c", SHELL.format(commands=theirs)],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[theirs],
        start_new_session=True,
    )
    os.close(theirs)
    too_long = Timer(LONGEST_SECONDS, os.killpg, [process.pid, 9])
    too_long.start()
    try:
        with process:
            try:
                yield Shell(process, ours)
            finally:
                os.close(ours)
                if sys.exc_info()[0] is not None:
                    os.killpg(process.pid, 9)
    finally:
        too_long.cancel()
        too_long.join()


def _steps(page: str) -> Iterator[tuple[str, str]]:
    """The commands of the page, each with what it should say."""
    for kind, block in BLOCK.findall(page):
        if kind == "python":
            file = FILE.match(block)
            into = f"cat >{file[1]}" if file else "python - >python.log 2>&1"
            yield f"{into} <<'END_OF_SNIPPET'\n{block}\nEND_OF_SNIPPET", ""
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, said = part.partition("\n")
            yield command, said


def _matches(said: str, shown: str) -> bool:
    return re.fullmatch(".*?".join(map(re.escape, shown.split(VARIES))), said) is not None
