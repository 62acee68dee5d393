"""RELIABILITY.md, from the results of runs."""
