"""The types in each store's `schema.sql`, as SQLAlchemy knows them."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, Integer, LargeBinary, SmallInteger, Text
from sqlalchemy.dialects import mysql, postgresql

TYPES: Final[dict[str, dict[str, Any]]] = {
    "postgres": {
        "bigint": BigInteger,
        "boolean": Boolean,
        "bytea": postgresql.BYTEA,
        "integer": Integer,
        "interval": postgresql.INTERVAL,
        "smallint": SmallInteger,
        "text": Text,
        'text collate "C"': Text(collation="C"),
        "timestamptz": postgresql.TIMESTAMP(timezone=True),
        "uuid": postgresql.UUID,
    },
    "mysql": {
        "bigint": BigInteger,
        "binary(16)": mysql.BINARY(16),
        "datetime(6)": mysql.DATETIME(fsp=6),
        "int": Integer,
        "int unsigned": mysql.INTEGER(unsigned=True),
        "longblob": mysql.LONGBLOB,
        "longtext collate utf8mb4_bin": mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"),
        "tinyint": mysql.TINYINT,
        "varbinary(32)": mysql.VARBINARY(32),
        "varbinary(1020)": mysql.VARBINARY(1020),
        "varbinary(2041)": mysql.VARBINARY(2041),
    },
    "sqlite": {"BLOB": LargeBinary, "INTEGER": Integer, "TEXT": Text},
}
