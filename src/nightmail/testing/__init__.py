"""For tests: a clock to move, and the suite that proves a store."""
