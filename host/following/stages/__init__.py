"""Nodes that take memory of a card: each stands for a stage, and gives what the host's own would.

A file for each kind of work. What a stage takes is predicted in :mod:`...prediction`, not here.
"""
