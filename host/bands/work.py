"""What a worker does: its band of an encode or decode."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...memory.link import link_speed
from ...vae.exact import CannotRecord, DoesNotFit, StoreOverflow
from ...vae.exact.bands.peers import PeerLost, Peers
from ...vae.exact.bands.run import BandRun
from ...vae.exact.cutting.share import Share
from ...vae.exact.planning.card import figures_of
from ...vae.exact.planning.remembered import remembered
from ..attention.in_vae import ATTRIBUTES, AttentionInStrips, attend
from ..core.compat import interruptions, is_out_of_memory
from ..measure.calibrated import in_strips, workspaces_on


@dataclass
class BandWork:
    """A worker's part.

    Attributes:
        method: of the module: decode or encode.
        band: its rows of the input, (B, C, [T,] rows, W). height: rows of all of it.
        dtype: of the module.
        options: further arguments of the method; ``device``, if there, is the worker's own.
        budget: bytes on the device, weights not counted.
        half_store: maps are kept in float16.
        rows: of the result in a strip; 0 = by the budget.
    """

    method: str
    band: Tensor
    height: int
    dtype: torch.dtype
    budget: float
    options: dict[str, Any] = field(default_factory=dict)
    half_store: bool = False
    rows: int = 0


def computed(
    model: Any,
    work: BandWork,
    share: Share,
    peers: Peers,
    device: torch.device,
    on_strip: Callable[[float], None],
) -> dict[str, Any]:
    """The band of the result, or why there is none: plain values, since other processes have classes of their own.

    Returns:
        ``status``: done, does_not_fit, overflow, not_exact, out_of_memory, lost, interrupted or failed. Of what is
        done ``band`` (float32, in host memory), ``peak``, ``received``, ``strips``, ``passes``; else ``why`` or
        ``least``.
    """
    try:
        return _computed(model, work, share, peers, device, on_strip)
    except DoesNotFit as error:
        return {"status": "does_not_fit", "least": error.least}
    except StoreOverflow as error:
        return {"status": "overflow", "why": str(error)}
    except CannotRecord as error:
        return {"status": "not_exact", "why": str(error)}
    except PeerLost as error:
        return {"status": "lost", "rank": error.rank, "why": str(error)}
    except interruptions():
        return {"status": "interrupted"}
    except Exception as error:
        kind = "out_of_memory" if is_out_of_memory(error) else "failed"
        return {"status": kind, "why": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def _computed(
    model: Any, work: BandWork, share: Share, peers: Peers, device: torch.device, on_strip: Callable[[float], None]
) -> dict[str, Any]:
    x = work.band.to(device=device, dtype=work.dtype)
    options = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in work.options.items()}
    if "device" in options:
        options["device"] = device
    run = BandRun(
        share,
        peers,
        work.budget,
        store=torch.float16 if work.half_store else None,
        rows=work.rows,
        out_device=torch.device("cpu"),
        out_dtype=torch.float32,
        on_strip=lambda done, out: on_strip(done),
        on_search=lambda: on_strip(0.0),
        attend=attend,
        owned=list(model.parameters()),
        plans=remembered(model),
        figures=figures_of(device, link_speed(device), in_strips(workspaces_on(device))),
    )
    run.height, run.beside = work.height, [x.nbytes]
    with torch.inference_mode():
        try:
            band = run.run(getattr(model, work.method), x, **options)
        finally:
            run.close()
    report = run.report
    return {
        "status": "done",
        "band": band.contiguous(),
        "peak": report.peak,
        "received": report.received,
        "strips": report.strips,
        "passes": report.passes,
    }


def follow_attention(model: Any) -> None:
    """Has a module of the worker's own take recorded maps in its attention blocks."""
    for module in model.modules():
        for attribute in ATTRIBUTES:
            function = module.__dict__.get(attribute)
            if callable(function) and not isinstance(function, AttentionInStrips):
                setattr(module, attribute, AttentionInStrips(function))
