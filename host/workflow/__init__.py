"""Whole workflows, predicted or fitted in a host without being run.

Their formats are read in graph/, which needs no host.
"""
