"""The host's VIDEO and files of the output folder: latents decoded straight to one, files encoded straight to latents.

Which frames a latent gives, and in which order, is `host/streaming/`'s; how a file is written is `video/`'s.
"""
