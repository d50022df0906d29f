"""Video autoencoders in chunks of frames, a family a file: where the chunks end, and what is kept from one to the next.

How a chunk is computed within a byte budget is not here, but in :mod:`...vae.exact`.
"""
