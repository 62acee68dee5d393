"""Messages in MariaDB or MySQL, through asyncmy. MariaDB 10.11 is what the tests run on; MySQL 8 is written for."""

from nightmail.stores.mysql.store import MySQLStore

__all__ = ["MySQLStore"]
