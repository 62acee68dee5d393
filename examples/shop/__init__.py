"""A small shop on one SQLite file: its orders and their messages. `python -m examples.shop` runs it."""
