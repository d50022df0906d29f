"""Videos decoded piece by piece, so that no memory has to hold all frames: a way for each kind of autoencoder.

Where the frames go is `host/video_files/`'s; how a VAE works within a budget is `host/vae/`'s.
"""
