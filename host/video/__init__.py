"""Video autoencoders that run in chunks of frames: where the chunks end, and what is carried from one to the next.

How a chunk is computed within a byte budget is not here, but in :mod:`...vae.exact`.
"""
