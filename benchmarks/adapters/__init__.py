"""One script for each system that is measured, run by an interpreter that has it installed.

All speak the protocol of `harness`, which also has everything that is measured: an adapter only says how its system
publishes and how a handler is registered. Nothing here imports the rest of the benchmarks, for a peer's environment has
neither Nightmail nor our tools.
"""
