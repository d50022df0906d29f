"""VAEs of the host's that encode and decode within a budget: in one piece, in exact strips, in feathered tiles.

How strips are planned and computed is the VAE engine's.
"""
