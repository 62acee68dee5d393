"""Ownership of the database file: one that others can write to or replace is used, but with a warning."""

from __future__ import annotations

import logging
import os
import stat

logger = logging.getLogger(__name__)


def warn_about_others(path: str) -> None:
    """Log a warning when other users of this machine can change the messages in this file, or replace it.

    There may be no file yet. A link is followed, since data directories are often links; with a warning if another
    user made it.
    """
    if not hasattr(os, "geteuid"):
        return  # Windows has a different permission model.
    # A link and the file that it leads to may be in two directories: others may replace neither.
    real = os.path.realpath(path)
    directories = {os.path.dirname(real): real, os.path.realpath(os.path.dirname(path)): path}
    for directory, name in directories.items():
        _warn_about_directory(directory, name)
    if os.path.exists(path):
        _warn_about_file(path)


def _warn_about_directory(directory: str, name: str) -> None:
    try:
        found = os.stat(directory)
    except OSError:
        return  # There is none: the caller says so.
    # In a sticky directory, such as /tmp, only its owner can replace a file.
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        logger.warning(
            "every user of this machine can replace %s: its directory has mode %04o%s. Run: chmod o-w %s",
            name,
            stat.S_IMODE(found.st_mode),
            _owner(found),
            directory,
        )


def _warn_about_file(path: str) -> None:
    link, file = os.lstat(path), os.stat(path)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in _trusted() | {file.st_uid}:
        logger.warning(
            "%s is a link that user %d made, to a file of user %d: make sure that it leads where you want it to",
            path,
            link.st_uid,
            file.st_uid,
        )
    if file.st_mode & stat.S_IWOTH:
        logger.warning(
            "every user of this machine can change the messages in %s: its mode is %04o%s. Run: chmod o-rwx %s",
            path,
            stat.S_IMODE(file.st_mode),
            _owner(file),
            path,
        )


def _owner(found: os.stat_result) -> str:
    return "" if found.st_uid in _trusted() else f" and belongs to user {found.st_uid}"


def _trusted() -> set[int]:
    return {os.geteuid(), 0}
