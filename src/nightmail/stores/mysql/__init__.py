"""Messages in MariaDB or MySQL, through asyncmy. Tested on MariaDB 10.11; written for MySQL 8 too."""

from nightmail.stores.mysql.store import MySQLStore

__all__ = ["MySQLStore"]
