"""The emulated card: figures of real ones, how it is built, how a process is started on it, how its clock is read.

Its sources and its own tests are in `tests/emulator`. Standard library only.
"""
