"""How the networks in `weights` were trained; run by hand and seldom.

No test and nothing shipped imports it. What writes them into checkpoints is a floor above: `sd_vae.py` and `painter`.
"""
