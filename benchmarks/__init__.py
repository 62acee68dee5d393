"""Figures of the whole path, on default settings. `python -m benchmarks` prints them; nothing here is a test."""
