"""How the decoder in `weights` was trained; run by hand and seldom.

Nothing imports it. What writes the trained decoder into a checkpoint is `sd_vae.py`, a floor above.
"""
