"""The weights of a MODEL or CLIP in fewer bits: as a clone, by sensitivity, from a file, in the host's own formats.

How a storage rounds is the offload engine's; which weights are on the card is host/offload's.
"""
