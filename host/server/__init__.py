"""Headroom over HTTP: routes in the host's own server, and prompts refused before they are queued.

What they answer is computed in workflow/.
"""
