"""What work would take, found by running it without data."""

from .card import CAPABILITIES, GPU_CHOICES, THIS_MACHINE, Card, named_card
from .fake import fake_copy, fake_mode, fake_tensor, fake_tree, name_modules
from .forecast import Forecast, Stage, Verdict
from .live_bytes import LiveBytes
from .picture import draw_forecast
from .predict import CannotPredict, Prediction, predict
from .repeats import Repeats
from .text import advise, render_forecast
from .workspace import DOCUMENTED, Workspaces

__all__ = [
    "CAPABILITIES",
    "DOCUMENTED",
    "GPU_CHOICES",
    "THIS_MACHINE",
    "CannotPredict",
    "Card",
    "Forecast",
    "LiveBytes",
    "Prediction",
    "Repeats",
    "Stage",
    "Verdict",
    "Workspaces",
    "advise",
    "draw_forecast",
    "fake_copy",
    "fake_mode",
    "fake_tensor",
    "fake_tree",
    "name_modules",
    "named_card",
    "predict",
    "render_forecast",
]
