"""What work would take, found by running it without data."""

from .calibration import Calibration, Collecting
from .card import CAPABILITIES, GPU_CHOICES, THIS_MACHINE, Card, named_card
from .convolution import Convolution
from .fake import fake_copy, fake_mode, fake_tensor, fake_tree, name_modules
from .fit_text import render_fit, why_nothing_fits
from .forecast import Forecast, Stage, Verdict
from .forecast_bar import forecast_bar
from .live_bytes import LiveBytes
from .numbers import forecast_numbers
from .picture import draw_forecast
from .plans import QUALITIES, Fit, Loss, SamplingPlan, VAEPlan, choose
from .predict import CannotPredict, Prediction, predict
from .repeats import Repeats
from .text import advise, render_forecast
from .workspace import DOCUMENTED, Workspaces

__all__ = [
    "CAPABILITIES",
    "DOCUMENTED",
    "GPU_CHOICES",
    "QUALITIES",
    "THIS_MACHINE",
    "Calibration",
    "CannotPredict",
    "Card",
    "Collecting",
    "Convolution",
    "Fit",
    "Forecast",
    "LiveBytes",
    "Loss",
    "Prediction",
    "Repeats",
    "SamplingPlan",
    "Stage",
    "VAEPlan",
    "Verdict",
    "Workspaces",
    "advise",
    "choose",
    "draw_forecast",
    "fake_copy",
    "fake_mode",
    "fake_tensor",
    "fake_tree",
    "forecast_bar",
    "forecast_numbers",
    "name_modules",
    "named_card",
    "predict",
    "render_fit",
    "render_forecast",
    "why_nothing_fits",
]
