"""What ran and what it took: the run log, measured peaks, the report as text and as a chart."""

from .allocated import Allocated
from .bars import Bar, draw_bars
from .chart import draw_report
from .mapped import file_backed_bytes
from .memory_bar import USUAL_LIMIT, MemoryBar, measured_bar
from .peak import Peak, PeakMeter
from .report import NodeReport, format_bytes, render_report
from .row_numbers import row_numbers
from .runlog import AttentionCounts, Row, RunLog

__all__ = [
    "USUAL_LIMIT",
    "Allocated",
    "AttentionCounts",
    "Bar",
    "MemoryBar",
    "NodeReport",
    "Peak",
    "PeakMeter",
    "Row",
    "RunLog",
    "draw_bars",
    "draw_report",
    "file_backed_bytes",
    "format_bytes",
    "measured_bar",
    "render_report",
    "row_numbers",
]
