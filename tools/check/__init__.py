"""`python3 -m tools check`, `test` and `mutations`: what is run, and how what came of it is told.

The tests are in `tests`, the slice of them for `--fast` in `tests/fast.txt`, the faults that they have to notice in
`tests/mutations.py`: nothing is asserted here.
"""
