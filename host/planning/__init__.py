"""Decisions and their reports: Make It Fit's plan, Compare's table, the Memory Report.

It asks prediction for bytes and the engines' adapters to act; it reads no workflow files.
"""
