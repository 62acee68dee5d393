"""Metrics of events and of queue depths. Spans are made by the broker's middlewares."""

from nightmail.telemetry.watch import QueueWatch

__all__ = ["QueueWatch"]
