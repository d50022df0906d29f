"""What work would take, found by running it without data, and plans that are chosen by it.

Charts and text made of predictions are in `memory/render`, not here.
"""

from .calibration import Calibration, Collecting
from .card import CAPABILITIES, GPU_CHOICES, THIS_MACHINE, Card, named_card
from .convolution import ConvolutionCall
from .fake import fake_copy, fake_mode, fake_tensor, fake_tree, name_modules, plain_tensors
from .forecast import Forecast, Stage, Verdict
from .giving_up import GivenUp, ends_by_asking_alone, ends_where_it_asks, is_asked, require_wanted, while_wanted
from .known_numbers import CountingModules, has_stated_zeros, state_zeros
from .live_bytes import LiveBytes, repeated
from .numbers import forecast_numbers
from .plans import QUALITIES, Fit, Loss, SamplingPlan, VAEPlan, choose
from .predict import CannotPredict, Prediction, explained, predict
from .repeats import Repeats
from .training import STATES, TrainingForecast, TrainingWay
from .turns import others_wait, turn
from .workspace import DOCUMENTED, Workspaces

__all__ = [
    "CAPABILITIES",
    "DOCUMENTED",
    "GPU_CHOICES",
    "QUALITIES",
    "STATES",
    "THIS_MACHINE",
    "Calibration",
    "CannotPredict",
    "Card",
    "Collecting",
    "ConvolutionCall",
    "CountingModules",
    "Fit",
    "Forecast",
    "GivenUp",
    "LiveBytes",
    "Loss",
    "Prediction",
    "Repeats",
    "SamplingPlan",
    "Stage",
    "TrainingForecast",
    "TrainingWay",
    "VAEPlan",
    "Verdict",
    "Workspaces",
    "choose",
    "ends_by_asking_alone",
    "ends_where_it_asks",
    "explained",
    "fake_copy",
    "fake_mode",
    "fake_tensor",
    "fake_tree",
    "forecast_numbers",
    "has_stated_zeros",
    "is_asked",
    "name_modules",
    "named_card",
    "others_wait",
    "plain_tensors",
    "predict",
    "repeated",
    "require_wanted",
    "state_zeros",
    "turn",
    "while_wanted",
]
