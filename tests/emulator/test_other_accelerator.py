"""An accelerator that is not CUDA: every node on one that is called npu, side by side with the emulated CUDA card."""

import contextlib
import io
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headroom.cli.checks.generated import takes_narrow
from headroom.memory import link
from headroom.tools.card import emulator
from headroom.tools.card.cards import CARDS
from headroom.tools.server.client import Client, Workflow
from headroom.tools.server.server import Server

from ..host.conftest import ENVIRONMENT
from ..host.workflows import ATTENTION, VAE, node, text_to_image
from ..nightly import at_night
from .conftest import Card

pytestmark = at_night  # two servers that run every node: four minutes and more

MB, GB = 2**20, 2**30
VRAM_MB = 3000
DECODE_GB = 0.19 if takes_narrow() else 0.36  # old hosts build every decoder in its encoder's width
MODEL_GB = 0.1
NAMES = {"npu": "Emulated NPU", "cuda": "RTX 3060 12 GB (emulated)"}
NODES = [f"Headroom{name}" for name in (
    "Attention", "Cast", "CastCLIP", "Compare", "Estimate", "Fit", "LocalAttention", "Offload", "Report", "VAE",
    "VAEDecode", "VAEEncode",
)]  # fmt: skip
CONDITIONING: dict[str, Any] = {"positive": ["2", 0], "negative": ["3", 0]}


def variables(device: str) -> dict[str, str]:
    """pytest's own process has the CUDA card preloaded; a process with another accelerator must not."""
    without = {} if device == "cuda" else {"LD_PRELOAD": ""}
    return emulator.variables(ENVIRONMENT, vram_mb=VRAM_MB, device=device) | without


def every_node() -> Workflow:
    """Two ways through all our nodes: attention, estimate and exact decode; then the rest, with the picture encoded."""
    graph = text_to_image(save_latent=False)
    graph["5"]["inputs"] |= {"model": ["10", 0], "latent_image": ["11", 0], "steps": 1}
    graph["6"] = node(
        "HeadroomVAEDecode", samples=["5", 0], vae=["1", 2], **VAE | {"method": "exact", "vram_budget_gb": DECODE_GB}
    )
    first: Workflow = {
        "10": node("HeadroomAttention", model=["1", 0], **ATTENTION | {"backend": "auto"}),
        "11": node(
            "HeadroomEstimate", model=["1", 0], vae=["1", 2], clip=["1", 1], samples=["4", 0], cfg=4.0,
            if_too_big="report", **CONDITIONING,
        ),
        "12": node("HeadroomReport", anything=["6", 0]),
    }  # fmt: skip
    sampled = dict(graph["5"]["inputs"]) | {"model": ["23", 0], "positive": ["25", 0], "latent_image": ["26", 0]}
    second: Workflow = {
        "20": node("HeadroomCast", model=["1", 0], storage="float8_e4m3fn_scaled", compute="auto", skip="auto"),
        "21": node(
            "HeadroomLocalAttention", model=["20", 0], blocks="all", start_percent=0.0, end_percent=1.0, max_error=0.1,
            min_tokens=4096, **{"pattern": "kv_pool", "pattern.factor": 2},
        ),
        "22": node("HeadroomFit", model=["21", 0], vae=["1", 2], samples=["4", 0], cfg=4.0, quality="exact"),
        "23": node("HeadroomOffload", model=["1", 0], vram_budget_gb=MODEL_GB, granularity="auto"),
        "24": node("HeadroomCastCLIP", clip=["1", 1], storage="bfloat16", compute="auto", skip="auto"),
        "25": node("CLIPTextEncode", clip=["24", 0], text="a lighthouse at dusk"),
        "26": node("HeadroomVAEEncode", pixels=["12", 0], vae=["1", 2], **VAE),
        "27": node("KSampler", **sampled),
        "28": node("HeadroomVAE", vae=["1", 2], **VAE),
        "29": node("VAEDecode", samples=["27", 0], vae=["28", 0]),
        "30": node("HeadroomReport", anything=["29", 0], model=["23", 0]),
        "31": node("SaveImage", images=["30", 0], filename_prefix="second"),
        "32": node(
            "HeadroomCompare", model=["22", 0], samples=["4", 0], cfg=4.0, dtypes=False, slice_sizes="64",
            backends=False, casting=False, **CONDITIONING,
        ),
    }  # fmt: skip
    graph["7"]["inputs"]["images"] = ["12", 0]
    return graph | first | second


@dataclass(frozen=True)
class Run:
    """What came of :func:`every_node` on a device.

    Attributes:
        texts: of the nodes that show one, by node.
        bars: numbers of the bars on their faces, by node.
        rows: of the run log, by node, each of which did one thing.
        pictures: (H, W, 3), by node.
    """

    texts: dict[str, str]
    bars: dict[str, dict[str, Any]]
    rows: dict[str, dict[str, Any]]
    pictures: dict[str, np.ndarray]

    @classmethod
    def of(cls, client: Client) -> "Run":
        result = client.run(every_node())
        shown = result.outputs
        return cls(
            {number: found["text"][0] for number, found in shown.items() if "text" in found},
            {
                number: json.loads(found["headroom_bar"][0])
                for number, found in shown.items()
                if "headroom_bar" in found
            },
            {row["id"]: row for row in client.get(f"/headroom/runs/{result.prompt_id}")["rows"]},
            {number: opened(client.image(shown[number]["images"][0])) for number in ("7", "31")},
        )


def opened(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture, dtype=np.int16)


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    """In float32: half precision takes a CPU, whose kernels these are, ten times as long."""
    found = {}
    for device in NAMES:
        with Server(ENVIRONMENT, extra_args=("--force-fp32",), cpu=False, variables=variables(device)) as server:
            found[device] = Run.of(Client(server.url))
    return found


@pytest.fixture(params=list(NAMES))
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(runs: dict[str, Run], device: str) -> Run:
    return runs[device]


def megabytes(text: str, pattern: str) -> list[int]:
    """Numbers of MB that follow or precede something in a text; the pattern has them in its group."""
    return [int(size) for size in re.findall(pattern, text)]


def test_every_node_runs_and_the_pictures_are_those_of_the_cuda_card(runs: dict[str, Run]) -> None:
    kinds = {item["class_type"] for item in every_node().values()}
    assert set(NODES) <= kinds
    for number, picture in runs["npu"].pictures.items():
        assert np.abs(picture - runs["cuda"].pictures[number]).max() <= 1
    assert all(row["outcome"] == "done" for row in runs["npu"].rows.values())


def test_the_report_is_of_the_device_and_its_own_memory(run: Run, device: str) -> None:
    report = run.texts["12"]
    assert report.startswith(f"Headroom memory report · {NAMES[device]}, 2.9 GB, torch {torch.__version__}")
    for number in ("5", "6", "26", "27", "29"):
        measured = run.rows[number]["measured"]
        assert measured["source"] == f"allocated on {NAMES[device]}"
        assert measured["highest"] < VRAM_MB * MB
    assert run.bars["12"]["total"] == VRAM_MB * MB


def test_it_measures_what_the_cuda_card_does(runs: dict[str, Run]) -> None:
    npu, cuda = (runs[name].rows["5"] for name in ("npu", "cuda"))
    assert npu["live_bytes"] == pytest.approx(cuda["live_bytes"], rel=0.02)


def test_sampling_takes_what_was_predicted(run: Run) -> None:
    row = run.rows["5"]
    assert row["live_bytes"] == pytest.approx(row["predicted"]["activations"], rel=0.02)


def test_attention_runs_by_the_devices_fused_kernel(run: Run) -> None:
    assert {entry["backend"] for entry in run.rows["5"]["attention"]} == {"sdpa"}


def test_the_estimate_is_for_the_device_and_ram_holds_weights_alone(run: Run, device: str) -> None:
    text = run.texts["11"]
    assert text.startswith(f"Will it fit? · {NAMES[device]}, 2.9 GB · 85% of it: 2.49 GB")
    assert run.bars["11"]["total"] == VRAM_MB * MB
    of_models = megabytes(text, r": (\d+) MB of weights")
    assert len(of_models) == 3
    assert abs(megabytes(text, r"RAM for weights (\d+) MB")[0] - sum(of_models)) <= 2


def test_offload_says_how_fast_copies_are_and_copies_ahead_or_says_why_not(run: Run) -> None:
    text = run.texts["23"]
    assert re.search(r"at \d+\.\d GB/s to this device a step takes", text)
    first, *lines = text.splitlines()
    why_not = [line for line in lines if line.startswith("! ") and "prefetch" in line]
    assert len(why_not) == ("the host's own streaming" in first)


def test_an_exact_decode_keeps_to_its_budget(run: Run) -> None:
    row = run.rows["6"]
    assert not [line for line in (*row["lines"], *row["notices"]) if "feathered" in line]
    assert [line for line in row["lines"] if "strips" in line]
    assert row["measured"]["growth"] <= DECODE_GB * GB


def test_a_comparison_measures_the_device(run: Run, device: str) -> None:
    assert f"{NAMES[device]}, 2.9 GB" in run.texts["32"]
    assert "allocated by torch" in run.texts["32"]
    assert "failed" not in run.texts["32"]


MEASURES = """
import json, sys, types
import torch
from headroom.memory import PeakMeter
from headroom.memory.accelerator import host_bytes, is_here, seconds_of

device = torch.device(sys.argv[1])
found = {"here": is_here(device), "cuda": is_here(torch.device("cuda")), "pinned": host_bytes(16).is_pinned()}
kept = torch.ones(2**20, device=device)
target = torch.empty(2**20, dtype=torch.uint8, device=device)
for way in ("module", "alone"):
    if way == "alone":  # a backend whose own module says nothing of memory
        setattr(torch, device.type, types.SimpleNamespace())
    with PeakMeter(device) as meter:
        more = torch.ones(3 * 2**20, device=device)
        del more
    truth = torch.accelerator.max_memory_allocated()
    seconds = seconds_of(device, lambda: target.copy_(host_bytes(2**20), non_blocking=True))
    found[way] = [meter.peak.before, meter.peak.highest, truth, meter.peak.source, seconds > 0]
print(json.dumps(found))
"""


def test_without_a_host(device: str, tmp_path: Path) -> None:
    """The figures are torch's own, from the backend's module or from what torch has for all."""
    (tmp_path / "headroom").symlink_to(ENVIRONMENT.pack, target_is_directory=True)
    answer = subprocess.run(
        [ENVIRONMENT.python, "-c", MEASURES, device], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, **variables(device)},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["module"] == [5 * MB, 17 * MB, 17 * MB, f"allocated on {NAMES[device]}", True]
    assert found["alone"] == [5 * MB, 17 * MB, 17 * MB, f"allocated on {device}", True]
    assert (found["here"], found["pinned"], found["cuda"]) == (True, True, device == "cuda")


def until_full(device: torch.device) -> list[torch.Tensor]:
    """Tensors of 8 MB, then of 1 MB, as many as there is room for."""
    pieces: list[torch.Tensor] = []
    for size in (8 * MB, MB):
        with contextlib.suppress(torch.OutOfMemoryError):
            while True:
                pieces.append(torch.empty(size, dtype=torch.uint8, device=device))
    return pieces


def test_a_full_device_has_no_speed_and_fails_nothing(card: Card) -> None:
    """What is copied has no room there: its speed is left out of the report, and measured later."""
    device = torch.device("cuda", torch.cuda.current_device())
    card.set(vram_mb=card.allocated / MB + 400)
    pieces = until_full(device)
    assert link.link_speed(device) is None
    del pieces
    torch.cuda.empty_cache()
    assert link.link_speed(device) == pytest.approx(CARDS["rtx3060"].link * 1e9, rel=0.1)
