"""The mutation gate: the product is broken on purpose, one line at a time, and a named test must notice each time."""
