"""Exact execution of an autoencoder in strips of rows, or of a video's frames: the same result in a fraction of the
memory.

The module's own forward runs once on recording tensors (:mod:`.recording`, :mod:`.rules`). The recorded computation
(:mod:`.operations`) is cut into passes over the picture's rows (:mod:`.cutting`), a schedule that fits a byte budget is
chosen (:mod:`.planning`), and the passes run strip by strip (:mod:`.running`). Start reading at :class:`ExactRun`.
Tiles that are blended are not here, but in :mod:`..feathered`.
"""

from .chunked import ChunkedRun, kept_of
from .engine import DoesNotFit, ExactRun
from .planned import FollowedRun, PlannedRun, UnbrokenRun
from .planned_chunks import PlannedChunks
from .planning.schedule import Schedule
from .recording.record import Recorded
from .recording.value import CannotRecord
from .report import Report
from .running.arena import Hold
from .running.stores import StoreOverflow

__all__ = [
    "CannotRecord",
    "ChunkedRun",
    "DoesNotFit",
    "ExactRun",
    "FollowedRun",
    "Hold",
    "PlannedChunks",
    "PlannedRun",
    "Recorded",
    "Report",
    "Schedule",
    "StoreOverflow",
    "UnbrokenRun",
    "kept_of",
]
