"""The only place that touches ``comfy.*``: adapters between the host and Headroom's engines, in rooms.

Nothing is computed here that a program without ComfyUI could use: that is in the engines.
"""
