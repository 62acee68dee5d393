"""Messages in MariaDB or MySQL, through asyncmy. Tested on MariaDB 10.11 and 11.8, and on MySQL 9.7."""

from nightmail.stores.mysql.store import MySQLStore

__all__ = ["MySQLStore"]
