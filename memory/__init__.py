"""What ran and what it took: the run log, measured peaks, what accelerators tell.

`prediction/`: work run without data. `render/`: every text and chart made of either.
"""

from .allocated import Allocated
from .mapped import file_backed_bytes
from .peak import Peak, PeakMeter
from .row_numbers import row_numbers
from .runlog import AttentionCounts, Row, RunLog

__all__ = ["Allocated", "AttentionCounts", "Peak", "PeakMeter", "Row", "RunLog", "file_backed_bytes", "row_numbers"]
