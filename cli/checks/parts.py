"""The parts of a check in their order, and how one of them may fail without ending the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import comfy.model_management as model_management

from ...host.core.compat import is_out_of_memory
from . import attention, casting, offload, prediction, speed, vae
from .bench import Bench
from .rows import Check, CheckOutcome, CheckRow

NO_TIME = "no time left: give it more --seconds"


@dataclass(frozen=True)
class Part:
    """Attributes:
    name: on the command line.
    title: what it is about, for people.
    checks: to look at, one after the other.
    """

    name: str
    title: str
    checks: Callable[[Bench], Iterator[Check]]


PARTS = (
    Part(
        "attention",
        "Attention: how near the latents of two steps are to ComfyUI's own; more dB are nearer",
        attention.checks,
    ),
    Part("casting", "Layerwise Casting: what the weights take, and how near they stay", casting.checks),
    Part("decode", "VAE decode in strips: as near as float32 can tell, and within a budget", vae.decode_checks),
    Part("encode", "VAE encode in strips: the same", vae.encode_checks),
    Part("offload", "Block Offload: the same latents, within a budget", offload.checks),
    Part("prefetch", "Block Offload: are weights copied while others compute?", offload.prefetch_checks),
    Part("prediction", "Predictions beside what was measured", prediction.checks),
    Part("speed", "A decode beside ComfyUI's own ways: seconds, and memory with the weights", speed.checks),
)


def rows(part: Part, bench: Bench) -> Iterator[CheckRow]:
    """Of a part, each as soon as it is known. What raises is a row as well, and the next is looked at."""
    if bench.is_over:
        yield CheckRow(part.name, CheckOutcome.NOT_RUN, NO_TIME)
        return
    checks = part.checks(bench)
    while True:
        try:
            check = next(checks, None)
        except Exception as error:  # of any kind: a whole part must not end the others
            yield _failed(part.name, error, bench)
            return
        if check is None:
            return
        yield CheckRow(check.name, CheckOutcome.NOT_RUN, NO_TIME) if bench.is_over else _row(check, bench)


def _row(check: Check, bench: Bench) -> CheckRow:
    try:
        with ending(bench):
            return CheckRow(check.name, *check.look())
    except model_management.InterruptProcessingException:
        return CheckRow(check.name, CheckOutcome.NOT_RUN, NO_TIME)
    except Exception as error:  # as above
        return _failed(check.name, error, bench)


@contextmanager
def ending(bench: Bench) -> Iterator[None]:
    """Within it, work is cancelled as by the user's button when time is up: between two steps or strips."""
    timer = threading.Timer(max(0.0, bench.seconds - bench.elapsed), model_management.interrupt_current_processing)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        model_management.interrupt_current_processing(False)


def _failed(name: str, error: Exception, bench: Bench) -> CheckRow:
    row = CheckRow(name, CheckOutcome.FAILED, sentence(error))
    del error  # it holds every tensor of what failed
    model_management.unload_all_models()
    model_management.soft_empty_cache()
    return row


def sentence(error: Exception) -> str:
    """What went wrong, in a line."""
    if is_out_of_memory(error):
        return "out of memory"
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
