"""What a video's strips are cut along, and frames that are handed on as they come.

Where chunks of frames end is said in :mod:`..chunks`.
"""
