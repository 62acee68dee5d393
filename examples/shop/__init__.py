"""A small shop on one SQLite file: its orders, and the messages beside them. `python -m examples.shop` runs it."""
