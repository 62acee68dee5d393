"""Finding the programs of a server, and installing its Debian package when they are missing.

A package that brings a server also starts one, shared and on the default port. That is not wanted
here, so while a package is being installed a policy-rc.d forbids it.
"""

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from glob import glob
from pathlib import Path

from testkit.servers.errors import ServerUnavailable

INSTALL_VARIABLE = "NIGHTMAIL_TEST_INSTALL"
"""Set to 0 to never install anything."""

_POLICY = Path("/usr/sbin/policy-rc.d")
_LOCK = Path("/run/nightmail-testkit.lock")


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package, and where it puts its programs."""

    name: str
    places: tuple[str, ...] = ("/usr/sbin", "/usr/bin")
    """Directories, as glob patterns; of several matches the highest version is taken."""

    while_installing: Mapping[str, str] = field(default_factory=dict)
    """Files that must exist during the installation: path and content."""


def program(name: str, package: Package) -> Path:
    """Where this program is, after installing its package if need be and if we may."""
    found = find(name, package)
    if found is None:
        _install(name, package)
        found = find(name, package)
    if found is None:
        raise ServerUnavailable(f"{name} is missing although package {package.name} is installed")
    return found


def find(name: str, package: Package) -> Path | None:
    """Where this program is. PATH goes first: it is how a user picks one of several versions."""
    directories = [place for pattern in package.places for place in _newest_first(glob(pattern))]
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), *directories])
    found = shutil.which(name, path=search)
    return Path(found) if found else None


def _newest_first(directories: list[str]) -> list[str]:
    def version(directory: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", directory)]

    return sorted(directories, key=version, reverse=True)


def _install(name: str, package: Package) -> None:
    obstacle = _obstacle()
    if obstacle:
        raise ServerUnavailable(f"{name} was not found and {obstacle}: install Debian package {package.name}")
    with ExitStack() as stack:
        stack.enter_context(_one_at_a_time())
        if find(name, package):
            return  # Another run installed it while we waited.
        stack.enter_context(_temporary_file(_POLICY, _policy(), mode=0o755))
        for path, content in package.while_installing.items():
            stack.enter_context(_temporary_file(Path(path), content, mode=0o644))
        _update()
        _apt_get("install", "--yes", "--no-install-recommends", package.name)


def _obstacle() -> str | None:
    if os.environ.get(INSTALL_VARIABLE) == "0":
        return f"{INSTALL_VARIABLE}=0 forbids installing it"
    if os.geteuid() != 0:
        return "only root may install it"
    if shutil.which("apt-get") is None:
        return "there is no apt-get to install it with"
    return None


@cache
def _update() -> None:
    _apt_get("update")


def _apt_get(*arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", "--quiet", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ServerUnavailable(f"apt-get {' '.join(arguments)} failed:\n{done.stdout[-2000:]}")


def _policy() -> str:
    # Tied to this process: left behind by a killed run, it forbids nothing.
    lines = ["#!/bin/sh", "# Made by a test run.", f"[ -d /proc/{os.getpid()} ] && exit 101", "exit 0"]
    return "\n".join([*lines, ""])


@contextmanager
def _temporary_file(path: Path, content: str, *, mode: int) -> Iterator[None]:
    """Let a file exist for a while; one that is there already is left alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x") as file:
            file.write(content)
            path.chmod(mode)
    except FileExistsError:
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
