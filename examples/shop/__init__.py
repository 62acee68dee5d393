"""A small shop on one SQLite file: orders in its own table, messages beside them. Run with `python -m examples.shop`."""
