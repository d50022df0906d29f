"""What differs between ComfyUI's versions and its families of models, and its devices.

Nothing of ours is built on the host without it; it knows no engine's adapter.
"""
