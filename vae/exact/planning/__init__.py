"""Which schedule is fastest within a budget: a device's figures, passes counted without data, and the search.

Nothing here computes a map.
"""
