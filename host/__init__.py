"""The only place that touches ``comfy.*``: adapters between the host and Headroom's engines."""
