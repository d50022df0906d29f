"""A small Stable Diffusion that paints what it was trained with: scenes of coloured shapes, each told in a sentence.

Its pictures show something, so that one sees what a setting does to them, and `judge` tells whether they obey.
"""
