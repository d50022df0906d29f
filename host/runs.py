"""The process's run log, and how work is measured into it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import comfy.model_management
import torch

from ..memory import PeakMeter, Row, RunLog
from .compat import executing_node

LOG = RunLog()


@contextmanager
def measured(work: str, device: torch.device) -> Iterator[Row]:
    """Measures a stretch of the executing node's work into the run log: seconds, peak memory, outcome."""
    row = LOG.start(*executing_node(), work)
    meter = PeakMeter(device)
    start = time.perf_counter()
    row.outcome = "failed"
    try:
        with meter:
            yield row
        row.outcome = "done"
    except comfy.model_management.InterruptProcessingException:
        row.outcome = "interrupted"
        raise
    finally:
        row.seconds = time.perf_counter() - start
        row.peak = meter.peak
