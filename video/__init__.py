"""Video files by PyAV, which ComfyUI brings: frames written in closed segments, joined, kept, and read in windows.

What the frames are of, and where files lie, is not here: it knows nothing of ComfyUI, and a frame is a tensor.
"""

from .formats import FORMATS, FileFormat, check, rate
from .join import Audio, check_audio, join
from .journal import FinishedSegment, Journal, JournalIsLocked, JournalPlan, clean
from .reader import FrameReader
from .sequence import picture_names, write_list, write_pictures
from .writer import SegmentWriter

__all__ = [
    "FORMATS",
    "Audio",
    "FileFormat",
    "FinishedSegment",
    "FrameReader",
    "Journal",
    "JournalIsLocked",
    "JournalPlan",
    "SegmentWriter",
    "check",
    "check_audio",
    "clean",
    "join",
    "picture_names",
    "rate",
    "write_list",
    "write_pictures",
]
