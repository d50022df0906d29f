"""`python3 -m tools check` and `python3 -m tools test`: what is run, and how what came of it is told.

The tests are in `tests`, the slice of them for `--fast` in `tests/fast.txt`: nothing is asserted here.
"""
