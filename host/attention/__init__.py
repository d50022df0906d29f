"""The attention of a MODEL: the override that our nodes share, and what each of them puts into it.

The kernels are in the engine of the same name, which knows no host.
"""
