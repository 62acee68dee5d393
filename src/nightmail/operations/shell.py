"""Commands in texts for people: what they say can be pasted into a shell."""

from __future__ import annotations

import shlex

from nightmail.describing import one_line


def command(verb: str, queue: str, *options: str) -> str:
    """A command about a queue: `nightmail pause 'a b' --reason lunch`."""
    name, rest = _quoted(queue), "".join(f" {_quoted(each)}" for each in options)
    if queue.startswith("-"):
        # It would be taken for an option.
        return f"nightmail {verb}{rest} -- {name}"
    return f"nightmail {verb} {name}{rest}"


def resume_command(queue: str, ordering_key: str | None = None) -> str:
    """The command that ends a person's pause."""
    return command("resume", queue, *(() if ordering_key is None else ("--key", ordering_key)))


def _quoted(word: str) -> str:
    """One word for a shell, in one line."""
    return shlex.quote(one_line(word))
