"""What ran and what it took: the run log, measured peaks, the report as text and as a chart."""

from .bars import Bar, draw_bars
from .chart import draw_report
from .mapped import file_backed_bytes
from .peak import Peak, PeakMeter
from .report import NodeReport, format_bytes, render_report
from .row_numbers import row_numbers
from .runlog import AttentionCounts, Row, RunLog

__all__ = [
    "AttentionCounts",
    "Bar",
    "NodeReport",
    "Peak",
    "PeakMeter",
    "Row",
    "RunLog",
    "draw_bars",
    "draw_report",
    "file_backed_bytes",
    "format_bytes",
    "render_report",
    "row_numbers",
]
