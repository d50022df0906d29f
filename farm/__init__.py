"""Several ComfyUI servers as one: prompts go where they fit, a prompt to a machine.

A program beside the pack, `python3 -m farm`: ComfyUI does not load it, and the registry's archive does not hold it.
What is in one prompt is not divided here.
"""
