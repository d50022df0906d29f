"""A module's own forward, run once on tensors that note what is done to them, and the values that views share.

Which torch function becomes which operation is decided in :mod:`..rules`, not here.
"""
