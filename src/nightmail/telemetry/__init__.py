"""Metrics of what happens, and of how the queues stand. Spans are made by the broker's middlewares."""

from nightmail.telemetry.watch import QueueWatch

__all__ = ["QueueWatch"]
