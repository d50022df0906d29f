"""Small checkpoints that the stock loaders accept: drawn, but for one decoder whose weights are kept here.

The cache keys them by every file of this folder. How that decoder was trained is in `training`, which they do not need.
"""
