"""Messages in an SQLite file: no server, no driver to install, several processes."""

from nightmail.stores.sqlite.hook import begin_immediate
from nightmail.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore", "begin_immediate"]
