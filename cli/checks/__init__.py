"""The parts of `check`, a promise of the pack each, shown on the machine it runs on.

Loaded once the host is there. The command itself, which needs none, is `cli/check.py`.
"""
