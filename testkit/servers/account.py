"""The system user a server runs as."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from testkit.servers.errors import ServerUnavailable


@dataclass(frozen=True, slots=True)
class Account:
    """The user to run a server as; `None` is the user who runs the tests."""

    uid: int | None = None
    gid: int | None = None

    @classmethod
    def named(cls, user: str) -> Self:
        """This user when root runs the tests: most servers refuse root, or should not be trusted with it."""
        if os.geteuid() != 0:
            return cls()
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise ServerUnavailable(f"there is no system user {user!r} to run the server as") from None
        return cls(entry.pw_uid, entry.pw_gid)

    @property
    def groups(self) -> list[int] | None:
        """The supplementary groups to keep: none of root's."""
        return None if self.uid is None else []

    def own(self, path: Path) -> None:
        """Give a file or directory to this account."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)
