"""Every mutant, in the order in which they run."""

from __future__ import annotations

from typing import Final

from mutants.catalogue import broker, command_line, engine, memory, mysql, postgres, redis, shared, sqlite
from mutants.mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    *shared.MUTANTS,
    *engine.MUTANTS,
    *broker.MUTANTS,
    *command_line.MUTANTS,
    *memory.MUTANTS,
    *sqlite.MUTANTS,
    *postgres.MUTANTS,
    *mysql.MUTANTS,
    *redis.MUTANTS,
)
