"""Every text and chart: of what ran, of what is predicted, of plans and comparisons.

Nothing is measured or predicted here.
"""

from .bars import Bar, draw_bars
from .chart import draw_report
from .fit_text import render_fit, why_nothing_fits
from .forecast_bar import forecast_bar
from .forecast_chart import draw_forecast
from .forecast_text import advise, render_forecast, too_many_frames
from .memory_bar import USUAL_LIMIT, MemoryBar, measured_bar
from .report import NodeReport, render_report
from .training_chart import draw_training, training_bar
from .training_text import render_training, training_sentence

__all__ = [
    "USUAL_LIMIT",
    "Bar",
    "MemoryBar",
    "NodeReport",
    "advise",
    "draw_bars",
    "draw_forecast",
    "draw_report",
    "draw_training",
    "forecast_bar",
    "measured_bar",
    "render_fit",
    "render_forecast",
    "render_report",
    "render_training",
    "too_many_frames",
    "training_bar",
    "training_sentence",
    "why_nothing_fits",
]
