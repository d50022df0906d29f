"""What ran and what it took: the run log, measured peaks, the report as text and as a chart."""

from .chart import draw_report
from .peak import Peak, PeakMeter
from .report import NodeReport, render_report
from .runlog import AttentionCounts, Row, RunLog

__all__ = [
    "AttentionCounts",
    "NodeReport",
    "Peak",
    "PeakMeter",
    "Row",
    "RunLog",
    "draw_report",
    "render_report",
]
