"""A ComfyUI in a process of its own, and a client that speaks to it.

Nothing here knows what the prompts are about: tests, demo and pictures bring them.
"""
