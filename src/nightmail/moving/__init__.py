"""Moves what waits in the tables of another library into ours."""

from nightmail.moving.faststream_outbox import Mover
from nightmail.moving.records import Census, Moved, OldTables, QueueCensus, Stuck

__all__ = ["Census", "Moved", "Mover", "OldTables", "QueueCensus", "Stuck"]
