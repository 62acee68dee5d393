"""Ownership of the database file: a file that others can write to is used, but with a warning."""

from __future__ import annotations

import logging
import os
import stat

logger = logging.getLogger(__name__)


def warn_about_others(path: str) -> None:
    """Log a warning when other users of this machine can change the messages in this file.

    A link is followed, since data directories are often links; with a warning if another user made it.
    """
    if not hasattr(os, "geteuid"):
        return  # Windows has a different permission model.
    trusted = {os.geteuid(), 0}
    link, file = os.lstat(path), os.stat(path)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in trusted | {file.st_uid}:
        logger.warning(
            "%s is a link that user %d made, to a file of user %d: make sure that it leads where you want it to",
            path,
            link.st_uid,
            file.st_uid,
        )
    if file.st_mode & stat.S_IWOTH:
        owner = "" if file.st_uid in trusted else f" and belongs to user {file.st_uid}"
        logger.warning(
            "every user of this machine can change the messages in %s: its mode is %04o%s. Run: chmod o-rwx %s",
            path,
            stat.S_IMODE(file.st_mode),
            owner,
            path,
        )
