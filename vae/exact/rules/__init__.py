"""Which torch functions keep the rows of a picture apart, and how the others move across rows.

Known by the functions' names, not by the host's classes: a function means the same in every version of the host.
A rule that is not sure of its case returns NotImplemented, and the function gets real tensors.
"""

from . import rows, shapes, slices, whole, windows, writes
from .registry import apply

__all__ = ["apply", "rows", "shapes", "slices", "whole", "windows", "writes"]
