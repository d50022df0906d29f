"""Exact execution of an autoencoder in strips of rows: the same result in a fraction of the memory.

The module's own forward runs once on recording tensors (:mod:`.record`, :mod:`.rules`); the recorded computation
(:mod:`.graph`, :mod:`.ops`) is cut into passes over the picture's rows (:mod:`.passes`), a schedule is chosen that
fits a byte budget (:mod:`.schedule`, :mod:`.windows`), and the passes run strip by strip (:mod:`.stream`,
:mod:`.moments`, :mod:`.stores`). Start reading at :class:`ExactRun`.
"""

from .engine import DoesNotFit, ExactRun, Report
from .planned import FollowedRun, PlannedRun
from .record import Recorded
from .schedule import Schedule
from .stores import StoreOverflow
from .value import CannotRecord

__all__ = [
    "CannotRecord",
    "DoesNotFit",
    "ExactRun",
    "FollowedRun",
    "PlannedRun",
    "Recorded",
    "Report",
    "Schedule",
    "StoreOverflow",
]
