"""Videos straight to files on an emulated card: nothing races, what is predicted is taken, the budget holds."""

from __future__ import annotations

import gc
from fractions import Fraction
from pathlib import Path
from typing import Any

import comfy.model_management as model_management
import folder_paths
import pytest
import torch
from torch import Tensor

from headroom.host.core.device import GB
from headroom.host.measure.runs import LOG
from headroom.host.prediction.stages import own_card
from headroom.host.prediction.streamed import predict_from_file
from headroom.host.streaming import host_chunks
from headroom.host.vae.fallback import BudgetTooSmall
from headroom.host.video.along import OUTSIDE
from headroom.host.video.resizing import Resizing
from headroom.host.video_files.from_file import encode_from_file
from headroom.host.video_files.host_video import Frames, video_of
from headroom.host.video_files.to_file import FileRequest, Written, decode_to_file
from headroom.memory import Row
from headroom.vae.exact import ExactRun
from headroom.video import FORMATS, FrameReader, SegmentWriter

from ..host.autoencoders import AUTOENCODERS
from ..host.families import psnr
from ..nightly import NIGHTLY, grid, some_of
from .conftest import Card

pytestmark = pytest.mark.usefixtures("one_thread")
CELLS = (8, 10)
ENOUGH_FOR_ONE_FRAME = 25 * 2**20  # of Wan's small one, whose first chunk has one
HELD = ("hunyuan_video", "cogvideox")  # they hold maps of all frames on disk
CONTINUED = ["ltx", "cosmos", *(["mochi"] if NIGHTLY else [])]  # which the host runs as a whole


@pytest.fixture(autouse=True)
def _output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))


def decoded(name: str, x: Tensor, budget: float = 0.0) -> tuple[Tensor, Row]:
    request = FileRequest("exr", 16.0, -1.0, "video", None, {})
    torch.manual_seed(5)  # for those that draw noise
    written: Written = decode_to_file(vae_of(name), {"samples": x}, request, budget)
    return torch.cat(list(FrameReader(written.path).windows(16))), LOG.rows("", "")[-1]


def vae_of(name: str) -> Any:
    vae = AUTOENCODERS[name].load()
    assert vae.device.type == "cuda"
    return vae


def latent(name: str, cells: int) -> Tensor:
    return AUTOENCODERS[name].latent(*((2, 3) if name.startswith(("mochi", "ltx")) else CELLS), cells_in_time=cells)


SETTINGS = {"late": {"lazy": True}, "raced": {"races": True}}
WAYS = {
    "module": ["wan21", "wan22", *CONTINUED, "ltx_conditioned", *HELD],
    "strips": ["wan22", *CONTINUED, *HELD, "wan21"],
    "outside": ["wan21", "wan22", *CONTINUED[2:], *HELD],
}
CASES = [
    (name, way, copies) for way, names in WAYS.items() for name, copies in grid(names, list(SETTINGS))
]  # each at night both ways, else one of them by turns


@pytest.mark.parametrize(("name", "way", "copies"), some_of(CASES, 3))
def test_no_frame_is_read_before_it_is_there(
    card: Card, name: str, way: str, copies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, vae = latent(name, 5), vae_of(name)
    torch.manual_seed(5)
    expected = vae.decode(x)
    if way != "module":
        monkeypatch.setattr(host_chunks, "fits_as_module", lambda *_: False)
    if way == "outside":
        monkeypatch.setattr(host_chunks, "FIRST", OUTSIDE)
    card.set(**SETTINGS[copies])
    frames, row = decoded(name, x)
    torch.cuda.synchronize()
    assert not card.races
    assert row.outcome == "done"
    assert (way == "outside") == any("from chunk to chunk in host memory" in line for line in row.lines)
    stock = expected.reshape(-1, *expected.shape[-3:])
    if way == "module" and name not in (*CONTINUED, "ltx_conditioned"):
        assert torch.equal(frames, stock)
    else:  # both in 16 bits
        assert psnr(frames, stock) >= 40


@pytest.mark.parametrize("name", some_of(["wan21", *HELD, "wan22", *(CONTINUED if NIGHTLY else CONTINUED[:1])], 2))
def test_what_is_predicted_is_taken(card: Card, name: str) -> None:
    """By the module, beyond the weights, in bytes that the allocator gives out; the same for many more frames."""
    decoded(name, latent(name, 3))  # what libraries keep for good
    taken = []
    for cells in (20, 36) if name == "ltx" else (5, 17):  # whose chunks are of eight, the last with what was held back
        x = latent(name, cells)
        gc.collect()
        _, row = decoded(name, x)
        assert row.predicted is not None
        assert row.live is not None
        # Tensors alone: what kernels hold inside is counted too, and those of this card hold nothing.
        assert row.live == pytest.approx(row.predicted.live, rel=0.02, abs=2**20)
        taken.append(row.live)
    if name not in ("cosmos", "cogvideox"):  # of whose small ones what sees all frames takes most
        assert taken[1] == pytest.approx(taken[0], rel=0.01)


@pytest.mark.parametrize(
    ("name", "way"), grid(["wan21", *(["wan22"] if NIGHTLY else []), "hunyuan_video15"], ["module", "strips"])
)
def test_a_budget_is_kept_and_nothing_stays(card: Card, name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the module a tenth more than it needs; of strips half of that, or of Wan the least that they can do with,
    which is less (of HunyuanVideo, whose middle sees all frames, that takes minutes to find)."""
    has_middle = name == "hunyuan_video15"
    x = AUTOENCODERS[name].latent(*((8, 6) if has_middle else (16, 14)), cells_in_time=5)
    _, row = decoded(name, x)
    assert row.predicted is not None
    budget = 1.1 * (row.predicted.weights + row.predicted.activations) / GB
    if way == "strips":
        monkeypatch.setattr(host_chunks, "fits_as_module", lambda *_: False)
        budget = (row.predicted.weights + 0.5 * row.predicted.activations) / GB
        if not has_middle:
            with pytest.raises(BudgetTooSmall) as failure:
                decoded(name, x, row.predicted.weights / GB + 1e-3)
            assert failure.value.least < budget * GB
            budget = failure.value.least / GB
    model_management.unload_all_models()
    gc.collect()
    torch.cuda.empty_cache()
    before = card.allocated
    card.reset()
    frames, _ = decoded(name, x, budget)
    assert frames.shape[0] == 17
    assert card.peak - before <= 1.02 * budget * GB  # what a plan is held to on a card
    model_management.unload_all_models()
    gc.collect()
    assert card.allocated <= before


def test_where_the_lowest_strips_have_no_room_ram_carries(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies on the card from chunk to chunk, until memory runs out with the lowest of all strips."""
    x, computed = AUTOENCODERS["wan21"].latent(24, 20, cells_in_time=5), ExactRun._run

    def fail(run: ExactRun, schedule: Any, *args: Any) -> None:
        if not getattr(run, "outside", False) and schedule.peak > ENOUGH_FOR_ONE_FRAME:
            raise torch.cuda.OutOfMemoryError("out of memory, on purpose")
        computed(run, schedule, *args)

    monkeypatch.setattr(host_chunks, "fits_as_module", lambda *_: False)
    monkeypatch.setattr(ExactRun, "_run", fail)
    card.set(races=True)
    frames, row = decoded("wan21", x)
    torch.cuda.synchronize()
    assert not card.races
    in_ram = "out of memory: tried again in strips of chunks of frames, what is kept from chunk to chunk in host memory"
    assert row.notices[-1] == in_ram
    assert any("from chunk to chunk in host memory" in line for line in row.lines)
    vae = vae_of("wan21")
    stock = vae.decode(x)
    assert psnr(frames, stock.reshape(-1, *stock.shape[-3:])) >= 40


@pytest.mark.parametrize("name", some_of(["wan21", "sd", "hunyuan_video15", "ltx", "wan22", "cogvideox", "mochi"], 3))
def test_an_encode_from_a_file_is_foretold(card: Card, name: str, tmp_path: Path) -> None:
    """As an estimate tells it before there is a file: in the module's chunks, of all frames, or frame by frame."""
    vae, kind = vae_of(name), AUTOENCODERS[name]
    pixels = kind.pixels(8 * kind.shrink + 3, 10 * kind.shrink, 9 if name == "sd" else 17)
    path = tmp_path / "given.mkv"
    with SegmentWriter(path, FORMATS["mkv ffv1"], pixels.shape[2], pixels.shape[1], Fraction(16)) as writer:
        writer.add(pixels)
    for _ in range(2):  # the first time libraries take what they keep for good
        gc.collect()
        encode_from_file(vae, Frames(video_of(path)), Resizing(), 0.0)
    row = LOG.rows("", "")[-1]
    foretold = predict_from_file(vae, pixels, own_card(vae.device), 0.0).prediction
    assert row.live == pytest.approx(foretold.live, rel=0.02, abs=2**20)
