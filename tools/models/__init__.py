"""Small checkpoints that the stock loaders accept: drawn, but for three networks whose weights are kept here.

The cache keys them by the files of this folder, of `painter` and of `weights`. How these were trained is in
`training`, which they do not need.
"""
