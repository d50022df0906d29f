"""The computation cut into passes over the picture, and a pass into strips: which rows each of them computes and keeps.

Nothing here knows bytes or seconds: how tall strips are and what is stored is chosen in :mod:`..planning`.
"""
