"""Make It Fit in a workflow: where its nodes go, what it plans for, and what to do where memory ran out.

How workflows are read and written is in the folder above.
"""
