"""The environment: a ComfyUI, a Python, generated models, found or made once and kept in the cache.

Standard library only, since none of it is there before. What runs in the environment stands in the other rooms.
"""
