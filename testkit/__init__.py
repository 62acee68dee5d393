"""What Nightmail's tests and benchmarks run on: real servers, thrown away afterwards.

Not part of the wheel. Private servers need Linux; elsewhere, point the tests at servers of your own
(see `compose.yaml`).
"""
