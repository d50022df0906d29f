"""Workflow files: read in both formats, turned into prompts, and fitted. Standard library alone.

Nothing here runs a node or knows a model; what a node class takes is passed in by whoever has a host.
"""
