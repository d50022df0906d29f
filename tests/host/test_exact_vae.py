"""The exact method of Low-Memory VAE around every autoencoder that the host can load, in process."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import comfy.model_management as model_management
import comfy.sd
import comfy.utils
import pytest
import torch
from PIL import Image
from torch import Tensor

from headroom.host.core.device import GB
from headroom.host.measure.runs import LOG
from headroom.host.prediction.stages import own_card
from headroom.host.prediction.vae import Coding, predict_coding
from headroom.host.vae import coding
from headroom.host.vae.directions import Decode
from headroom.host.vae.fallback import BudgetTooSmall, CannotBeExact
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.tiles import TileCoder
from headroom.host.vae.wrapper import low_memory_vae
from headroom.memory import Row
from headroom.vae.exact import ChunkedRun, ExactRun
from headroom.vae.exact.cutting.passes import Pass
from headroom.vae.exact.operations.graph import Node
from headroom.vae.exact.planning import planner
from headroom.vae.exact.planning.alike import description

from ..nightly import grid, some_of
from .autoencoders import AUTOENCODERS
from .families import psnr

EXACT = VAESettings(method="exact", tile_size=16, overlap=0)
NEAR_ENOUGH = 90.0  # dB
HEIGHT, WIDTH = 6, 5  # cells
OUT_OF_MEMORY = torch.cuda.OutOfMemoryError

# The functions that get whole maps, because strips do not follow them; any other, or another kind, is a regression.
WHOLE_MAPS = {
    ("mochi", "encode"): {"baddbmm", "bmm"},
    ("cosmos", "decode"): {"bmm", "conv_transpose3d"},
    ("cosmos", "encode"): {"avg_pool3d", "bmm"},
    ("stage_a", "decode"): {"conv_transpose2d"},
    ("stage_c", "decode"): {"conv_transpose2d"},
    ("stage_c", "encode"): {"adaptive_avg_pool2d"},
    ("mage", "decode"): {"adaptive_avg_pool2d", "add", "cat", "mul"},
    ("mage", "encode"): {"adaptive_avg_pool2d"},
}


pytestmark = pytest.mark.usefixtures("one_thread")


def last_row() -> Row:
    return LOG.rows("", "")[-1]


def last_lines() -> str:
    return "\n".join(last_row().lines + last_row().notices)


def strips_of_a_map() -> float:
    """Of the last run, by its report."""
    found = re.search(
        r"exact(?:, float16 store)?: in strips(?: of chunks of frames)?, ([\d.]+) for each map on average", last_lines()
    )
    assert found, last_lines()
    return float(found[1])


def decoded(vae: comfy.sd.VAE, latent: Tensor) -> Tensor:
    """With the same noise for those that add some."""
    torch.manual_seed(5)
    return vae.decode(latent)


def encoded(vae: comfy.sd.VAE, pixels: Tensor) -> Tensor:
    torch.manual_seed(5)
    return vae.encode(pixels)


def exact(name: str, **settings: Any) -> comfy.sd.VAE:
    return low_memory_vae(AUTOENCODERS[name].load(), replace(EXACT, **settings))


@cache
def input_of(name: str, way: str, cells: int | None = None) -> Tensor:
    kind = AUTOENCODERS[name]
    cells = cells or min(kind.cells, 2 if kind.video else 1)
    if way == "decode":
        return kind.latent(HEIGHT, WIDTH, cells_in_time=cells)
    # Some pixels more than fill the cells: the host cuts them off.
    more = min(3, kind.shrink - 1)
    frames = 5 if name == "cogvideox" else kind.frames(cells)  # odd ones, of which none is left over
    return kind.pixels(HEIGHT * kind.shrink + more, WIDTH * kind.shrink, frames=frames)


def run(vae: comfy.sd.VAE, way: str, x: Tensor) -> Tensor:
    return decoded(vae, x) if way == "decode" else encoded(vae, x)


@cache
def stock(name: str, way: str, cells: int | None = None) -> Tensor:
    """The host's own result, untiled."""
    return run(AUTOENCODERS[name].load(), way, input_of(name, way, cells))


def goes_its_own_way(vae: comfy.sd.VAE) -> bool:
    return bool(getattr(vae, "handles_tiling", False))


def least_gb(name: str, x: Tensor) -> float:
    """The least budget for a decode, as the error names it."""
    with pytest.raises(ValueError, match=r"vram_budget_gb: 0\.001 GB is less than") as failure:
        exact(name, tile_size=0, vram_budget_gb=1e-3).decode(x)
    named = re.search(r"less than the ([\d.]+) GB", str(failure.value))
    assert named
    return float(named[1])


VIDEO = [name for name, kind in AUTOENCODERS.items() if kind.video]
FOUR_CHANNELS = ("wan21_rgba",)  # of what is encoded, where pixels here have three


class TestFrames:
    """Videos cut along their frames."""

    @pytest.mark.parametrize(
        ("name", "way"), some_of(grid([name for name in VIDEO if name not in FOUR_CHANNELS], ["decode", "encode"]), 4)
    )
    def test_the_hosts_modules_in_windows(self, name: str, way: str) -> None:
        kind, vae = AUTOENCODERS[name], AUTOENCODERS[name].load()
        x = kind.latent(4, 5, cells_in_time=4)
        if way == "encode":
            x = kind.pixels(4 * kind.shrink, 5 * kind.shrink, kind.frames(4)).movedim(-1, 0)[None] * 2 - 1
        work, x = getattr(vae.first_stage_model, way), x.to(vae.vae_dtype)
        torch.manual_seed(5)
        expected = work(x)
        torch.manual_seed(5)
        assert psnr(ExactRun(rows=1, along="frames").run(work, x), expected) >= 120

    def test_a_video_whose_rows_do_not_fit(self) -> None:
        """Strips of rows need six times the memory for it."""
        x = AUTOENCODERS["ltx"].latent(HEIGHT, WIDTH, cells_in_time=17)
        least = least_gb("ltx", x)
        vae = exact("ltx", tile_size=0, vram_budget_gb=least)
        assert psnr(decoded(vae, x), decoded(AUTOENCODERS["ltx"].load(), x)) >= 120
        assert re.search(r"exact: in windows of frames, [\d.]+ for each map on average", last_lines())
        assert last_row().notices == []
        assert last_row().predicted is not None
        found = predict_coding(Coding(vae, x), own_card(vae.device))
        assert found.prediction.activations == last_row().predicted.activations

    def test_what_a_batch_needs_at_least_is_enough(self) -> None:
        """What its results take is said, too."""
        x = AUTOENCODERS["ltx"].latent(HEIGHT, WIDTH, batch=2, cells_in_time=9)
        vae = exact("ltx", tile_size=0, vram_budget_gb=least_gb("ltx", x))
        assert psnr(decoded(vae, x), decoded(AUTOENCODERS["ltx"].load(), x)) >= 120

    def test_rows_where_they_fit(self) -> None:
        x = AUTOENCODERS["ltx"].latent(HEIGHT, WIDTH, cells_in_time=3)
        decoded(exact("ltx", tile_size=0), x)
        assert "windows of frames" not in last_lines()


@pytest.mark.parametrize(
    ("name", "way"), some_of([(name, way) for way in ("decode", "encode") for name in AUTOENCODERS], 2)
)
def test_every_kind(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vae, x = AUTOENCODERS[name].load(), input_of(name, way)
    expected = stock(name, way)
    described = list[bytes | None]()

    def describe(one: Pass, told: dict[tuple[Node, bool], str]) -> bytes | None:
        described.append(description(one, told))
        return described[-1]

    monkeypatch.setattr(planner, "description", describe)
    before = len(LOG.rows("", ""))
    kind = AUTOENCODERS[name]
    result = run(exact(name, tile_size=2 * (kind.reach if way == "decode" else kind.shrink)), way, x)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    if goes_its_own_way(vae):
        assert len(LOG.rows("", "")) == before
        return
    assert psnr(result, expected) >= NEAR_ENOUGH
    assert described
    assert None not in described, "such passes are counted anew each time"
    assert last_row().notices == []
    assert "exact: " in last_lines()
    whole = re.search(r"whole maps, beyond the plan, for: (.*)", last_lines())
    functions = set(re.sub(r" x\d+", "", whole[1]).split(", ")) if whole else set()
    assert functions <= WHOLE_MAPS.get((name, way), set())
    strips = strips_of_a_map()
    if not functions:
        assert strips > 1, "everything in one strip tests nothing"


class TestVideo:
    @pytest.mark.parametrize("cells", [1, 2, 3, 5])
    @pytest.mark.parametrize("name", ["wan21", "wan22", "ltx"])
    def test_frames(self, name: str, cells: int) -> None:
        """T = 1, 5, 9, 17 frames for Wan, up to 33 for LTX-Video."""
        kind = AUTOENCODERS[name]
        expected = stock(name, "decode", cells)
        result = decoded(exact(name, tile_size=kind.reach * 2), input_of(name, "decode", cells))
        assert result.shape[1] == kind.frames(cells)
        assert psnr(result, expected) >= NEAR_ENOUGH
        error = (result - expected).double()[0]
        steps = (error[1:] - error[:-1]).abs().mean((1, 2, 3))
        per_cell = kind.frames(2) - 1
        at_borders = torch.tensor([(frame % per_cell) == 0 for frame in range(len(steps))])
        if at_borders.any() and not at_borders.all():
            span = (expected.max() - expected.min()).item()
            assert steps[at_borders].mean() <= 2 * steps[~at_borders].mean() + 1e-6 * span

    @pytest.mark.parametrize("name", ["wan21", "wan22", "ltx"])
    @pytest.mark.parametrize("cells", [1, 3])
    def test_frames_encoded(self, name: str, cells: int) -> None:
        result = encoded(exact(name), input_of(name, "encode", cells))
        assert psnr(result, stock(name, "encode", cells)) >= NEAR_ENOUGH


def in_dtype(name: str, dtype: torch.dtype) -> comfy.sd.VAE:
    """The same autoencoder as the host would load it in another dtype."""
    original = AUTOENCODERS[name].load()
    vae = copy.copy(original)
    vae.first_stage_model = copy.deepcopy(original.first_stage_model).to(dtype)
    vae.vae_dtype = dtype
    vae.patcher = type(original.patcher)(
        vae.first_stage_model, load_device=original.patcher.load_device, offload_device=original.patcher.offload_device
    )
    return vae


@pytest.mark.parametrize(
    ("name", "frames", "method"),
    grid([name for name, kind in AUTOENCODERS.items() if kind.video], [3, 8], ["auto", "exact"]),
)
def test_frames_that_fill_no_cell(name: str, frames: int, method: str) -> None:
    """Some autoencoders drop them, some make use of them: as without the wrapper."""
    kind = AUTOENCODERS[name]
    pixels = kind.pixels(2 * kind.shrink, 2 * kind.shrink, frames=frames)
    try:
        expected = encoded(kind.load(), pixels)
    except RuntimeError as error:
        pytest.skip(f"the host's own fails: {error}")
    result = encoded(exact(name, method=method, tile_size=0), pixels)
    assert result.shape == expected.shape
    assert psnr(result, expected) >= NEAR_ENOUGH


class TestAccuracy:
    @pytest.mark.parametrize("way", ["decode", "encode"])
    @pytest.mark.parametrize("name", ["sd", "wan21"])
    def test_no_further_from_float64_than_the_host(self, name: str, way: str) -> None:
        original, x = AUTOENCODERS[name].load(), input_of(name, way)
        reference = copy.deepcopy(original.first_stage_model).double()
        if way == "decode":
            truth = original.process_output(reference.decode(x.double())).movedim(1, -1)
        else:
            pixels = original.vae_encode_crop_pixels(x).movedim(-1, 1)
            pixels = pixels.movedim(1, 0).unsqueeze(0) if AUTOENCODERS[name].video else pixels
            truth = reference.encode(original.process_input(pixels.double()))
        span = (truth.max() - truth.min()).item()

        def error(result: Tensor) -> float:
            return (result.double() - truth).abs().max().item()

        assert error(run(exact(name), way, x)) <= max(2 * error(stock(name, way)), 1e-5 * span)

    @pytest.mark.parametrize(
        ("dtype", "way", "name"), grid([torch.bfloat16, torch.float16], ["decode", "encode"], ["sd", "wan21"])
    )
    def test_half_precision(self, name: str, way: str, dtype: torch.dtype) -> None:
        """Strips round no more than the host does in that dtype."""
        vae, x, reference = in_dtype(name, dtype), input_of(name, way), stock(name, way)
        try:
            untiled = run(vae, way, x)
        except RuntimeError as error:
            pytest.skip(f"not on this CPU: {error}")
        result = run(low_memory_vae(vae, EXACT), way, x)
        assert "exact: " in last_lines()
        assert result.dtype == untiled.dtype
        assert not torch.equal(untiled, reference)
        error, own = ((one - reference).square().mean().sqrt() for one in (result, untiled))
        assert error <= 1.5 * own


class TestTheOriginal:
    """The VAE that was given stays as it was."""

    @pytest.fixture
    def unchanged(self) -> Iterator[comfy.sd.VAE]:
        vae, x = AUTOENCODERS["sd"].build(), input_of("sd", "decode")
        model = vae.first_stage_model
        attributes = dict(vae.__dict__)
        weights = {key: value.clone() for key, value in model.state_dict().items()}
        attention = model.decoder.mid.attn_1.optimized_attention
        before = vae.decode(x)
        modules = {name: set(module.__dict__) for name, module in model.named_modules()}
        yield vae
        assert vae.__dict__ == attributes
        assert vae.first_stage_model is model
        assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
        assert torch.equal(vae.decode(x), before)  # which loads it without our patches
        assert model.decoder.mid.attn_1.optimized_attention is attention
        assert {name: set(module.__dict__) for name, module in model.named_modules()} == modules

    def test_after_a_run(self, unchanged: comfy.sd.VAE) -> None:
        wrapped = low_memory_vae(unchanged, EXACT)
        wrapped.decode(input_of("sd", "decode"))
        assert "exact: " in last_lines()
        wrapped.encode(input_of("sd", "encode"))

    def test_of_both_in_turn(self, unchanged: comfy.sd.VAE) -> None:
        """Loading one takes the other's patches off the module they share."""
        x, wrapped = input_of("sd", "decode"), low_memory_vae(unchanged, EXACT)
        expected, ours = unchanged.decode(x), wrapped.decode(x)
        for _ in range(2):
            assert torch.equal(unchanged.decode(x), expected)
            assert torch.equal(wrapped.decode(x), ours)
            assert "exact: " in last_lines()

    def test_after_a_cancelled_run(self, unchanged: comfy.sd.VAE, monkeypatch: pytest.MonkeyPatch) -> None:
        wrapped, x = low_memory_vae(unchanged, EXACT), input_of("sd", "decode")
        calls = cancelling_at(40, monkeypatch)
        with pytest.raises(model_management.InterruptProcessingException):
            wrapped.decode(x)
        assert last_row().outcome == "interrupted"
        monkeypatch.undo()
        assert 40 <= calls[0] < 60
        assert psnr(wrapped.decode(x), unchanged.decode(x)) >= NEAR_ENOUGH

    def test_after_an_error(self, unchanged: comfy.sd.VAE, monkeypatch: pytest.MonkeyPatch) -> None:
        """An error of the module's own comes again from the tiles, which run it plainly."""

        def broken(*args: Any, **kwargs: Any) -> Tensor:
            raise RuntimeError("on purpose")

        monkeypatch.setattr(torch.nn.functional, "group_norm", broken)
        with pytest.raises(RuntimeError, match="on purpose"):
            low_memory_vae(unchanged, EXACT).decode(input_of("sd", "decode"))
        assert last_row().outcome == "failed"
        monkeypatch.undo()


def cancelling_at(call: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Interrupts the prompt at a convolution of the strips; counts those that ran."""
    count = [0]
    convolution = torch.nn.functional.conv2d

    def counting(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if type(x) is Tensor:
            count[0] += 1
            if count[0] == call:
                model_management.interrupt_current_processing()
        return convolution(x, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "conv2d", counting)
    return count


def test_cancel_stops_at_the_next_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    x = input_of("sd", "decode")
    total = cancelling_at(-1, monkeypatch)
    exact("sd", tile_size=8).decode(x)
    monkeypatch.undo()
    ran = cancelling_at(30, monkeypatch)
    with pytest.raises(model_management.InterruptProcessingException):
        exact("sd", tile_size=8).decode(x)
    assert total[0] > 200
    assert ran[0] < 60


class TestBudget:
    def test_too_small_a_one_names_the_least(self) -> None:
        """And what it names is enough."""
        x = AUTOENCODERS["sd"].latent(10, 24)
        least = least_gb("sd", x)
        with pytest.raises(
            ValueError,
            match=r"192 x 80 needs at least .*raise vram_budget_gb, or set store to float16, or lower the size",
        ):
            exact("sd", tile_size=0, vram_budget_gb=least - 0.002).decode(x)
        result = exact("sd", tile_size=0, vram_budget_gb=least).decode(x)
        assert "exact: " in last_lines()
        assert psnr(result, AUTOENCODERS["sd"].load().decode(x)) >= NEAR_ENOUGH

    def test_auto_takes_what_fits(self) -> None:
        """The whole if it fits, else exact strips, else tiles; and says which."""
        vae, x = AUTOENCODERS["sd"].load(), AUTOENCODERS["sd"].latent(40, 24)
        expected = vae.decode(x)
        weights = int(vae.patcher.model_size())
        whole = weights + vae.memory_used_decode(x.shape, vae.vae_dtype)

        def auto(budget: float, **settings: Any) -> Tensor:
            return low_memory_vae(vae, VAESettings(vram_budget_gb=budget / 2**30, **settings)).decode(x)

        assert torch.equal(auto(whole + 4096), expected)
        assert "in one piece" in last_lines()
        assert psnr(auto(whole - 4096), expected) >= NEAR_ENOUGH
        assert "exact: " in last_lines()
        assert last_row().notices == []

    def test_auto_feathers_only_where_strips_do_not_fit(self) -> None:
        """The host's estimate for a tile is made smaller than it is: that of strips is its own."""
        vae, x = AUTOENCODERS["sd"].load(), AUTOENCODERS["sd"].latent(64, 48)
        wrapped = low_memory_vae(vae, VAESettings(vram_budget_gb=0.02))
        wrapped.memory_used_decode = lambda shape, dtype: 200 * shape[-1] * shape[-2]
        wrapped.decode(x[..., :40, :40])
        assert "in one piece" in last_lines()
        result = wrapped.decode(x)
        assert result.shape == (1, 512, 384, 3)
        assert "feathered (approximate): " in last_lines()
        (notice,) = last_row().notices
        assert re.search(
            r"exact strips of 384 x 512 need [\d.]+ GB at least, the budget is 0.020 GB; raise vram", notice
        )

    def test_the_host_is_asked_for_the_strips(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x, asked = AUTOENCODERS["sd"].latent(64, 48), []
        load = model_management.load_models_gpu

        def spy(models: Any, memory_required: float = 0, **kwargs: Any) -> Any:
            asked.append(memory_required)
            return load(models, memory_required=memory_required, **kwargs)

        monkeypatch.setattr(model_management, "load_models_gpu", spy)
        exact("sd").decode(x)
        vae = AUTOENCODERS["sd"].load()
        assert 0 < max(asked) < vae.memory_used_decode(x.shape, vae.vae_dtype)
        assert f"planned peak {max(asked) / 2**20:.0f} MB" in last_lines()


class TestBatch:
    @pytest.mark.parametrize(("batch_slice", "slices"), [(0, [1, 1, 1]), (2, [2, 1]), (8, [3])])
    @pytest.mark.parametrize("way", ["decode", "encode"])
    def test_slices(self, monkeypatch: pytest.MonkeyPatch, way: str, batch_slice: int, slices: list[int]) -> None:
        """Each of as many images as was asked for."""
        computed: list[int] = []
        run_of_one = ExactRun.run

        def counted(self: ExactRun, module: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            computed.append(x.shape[0])
            return run_of_one(self, module, x, *args, **kwargs)

        monkeypatch.setattr(ExactRun, "run", counted)
        kind = AUTOENCODERS["sd"]
        x = kind.latent(HEIGHT, WIDTH, batch=3) if way == "decode" else kind.pixels(50, 40, frames=3)
        if way == "encode":
            x = x * torch.tensor([1.0, 0.5, 0.2]).reshape(3, 1, 1, 1)
        expected = run(kind.load(), way, x)
        result = run(exact("sd", batch_slice=batch_slice), way, x)
        assert "exact: " in last_lines()
        assert computed == slices
        for ours, theirs in zip(result, expected):
            assert psnr(ours, theirs) >= NEAR_ENOUGH

    def test_of_videos(self) -> None:
        kind = AUTOENCODERS["wan21"]
        x = kind.latent(4, 5, batch=2, cells_in_time=2)
        assert psnr(exact("wan21").decode(x), kind.load().decode(x)) >= NEAR_ENOUGH


class TestPreview:
    """The picture so far, on the node's face."""

    @pytest.fixture
    def shown(self, monkeypatch: pytest.MonkeyPatch) -> list[Image.Image]:
        """What a browser would be sent."""
        pictures: list[Image.Image] = []

        def hook(value: int, total: int, preview: Any, node_id: Any = None) -> None:
            if preview is not None:
                pictures.append(preview[1])

        monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", hook)
        return pictures

    def test_only_once_there_is_something_to_see(self, shown: list[Image.Image]) -> None:
        exact("sd", tile_size=16).decode(AUTOENCODERS["sd"].latent(24, 12))
        assert len(shown) > 1
        assert all(low < high for picture in shown for low, high in picture.getextrema()), "one colour"

    @pytest.mark.parametrize("tile_size", [16, 192])
    def test_the_last_one_of_a_slice_is_whole(self, shown: list[Image.Image], tile_size: int) -> None:
        result = exact("sd", tile_size=tile_size).decode(AUTOENCODERS["sd"].latent(24, 12, batch=2))
        images = [image.mul(255).to(torch.uint8).numpy().tobytes() for image in result]
        whole = [number for number, picture in enumerate(shown) if picture.tobytes() in images]
        assert whole == [len(shown) // 2 - 1, len(shown) - 1]

    def test_none_of_an_encode(self, shown: list[Image.Image]) -> None:
        exact("sd").encode(input_of("sd", "encode"))
        assert shown == []


class TestStore:
    @pytest.mark.parametrize("way", ["decode", "encode"])
    def test_half_is_near(self, way: str) -> None:
        result = run(exact("sd", store="float16"), way, input_of("sd", way))
        assert "near-exact, float16 store: " in last_lines()
        assert 50 < psnr(result, stock("sd", way)) < NEAR_ENOUGH + 20
        assert last_row().notices == []

    def test_a_map_beyond_its_range_is_stored_in_full(self) -> None:
        """What a norm takes back: weights before it scaled so that the map between exceeds half precision."""
        vae, x = AUTOENCODERS["sd"].build(), input_of("sd", "decode")
        block = vae.first_stage_model.decoder.mid.block_1
        block.conv1.weight.mul_(1e6)
        expected = vae.decode(x)
        result = low_memory_vae(vae, replace(EXACT, store="float16")).decode(x)
        assert psnr(result, expected) >= NEAR_ENOUGH
        assert "stored in full precision instead" in "".join(last_row().notices)
        assert "near-exact" not in "".join(last_row().lines)


class TestOutOfMemory:
    """Retried with less, then in tiles."""

    def failing(self, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
        """Convolutions of more than a few rows fail a number of times."""
        failures = [0]
        convolution = torch.nn.functional.conv2d

        def limited(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if type(x) is Tensor and x.device.type != "meta" and x.shape[-2] > 2 and failures[0] < times:
                failures[0] += 1
                raise OUT_OF_MEMORY("out of memory, on purpose")
            return convolution(x, *args, **kwargs)

        monkeypatch.setattr(torch.nn.functional, "conv2d", limited)
        return failures

    def test_within_less(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = AUTOENCODERS["sd"].latent(24, 12)
        expected = AUTOENCODERS["sd"].load().decode(x)
        exact("sd", tile_size=0).decode(x)
        peak = re.search(r"planned peak (\d+) MB", last_lines())
        failures = self.failing(monkeypatch, 1)
        result = exact("sd", tile_size=0).decode(x)
        assert failures == [1]
        assert psnr(result, expected) >= NEAR_ENOUGH
        (notice,) = last_row().notices
        assert "out of memory: tried again with lower strips" in notice
        lower = re.search(r"planned peak (\d+) MB", last_lines())
        assert int(lower[1]) < int(peak[1])

    def test_the_noise_of_a_vae_is_the_untiled_ones(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However often the decode begins anew."""
        x, attempts, computed = input_of("ltx_conditioned", "decode"), [], ExactRun._run
        expected = decoded(AUTOENCODERS["ltx_conditioned"].load(), x)

        def fail_once(run: ExactRun, *args: Any) -> None:
            attempts.append(run)
            if len(attempts) == 1:
                raise OUT_OF_MEMORY("out of memory, on purpose")
            computed(run, *args)

        monkeypatch.setattr(ExactRun, "_run", fail_once)
        assert psnr(decoded(exact("ltx_conditioned", tile_size=0), x), expected) >= NEAR_ENOUGH
        assert len(attempts) > 1

    def test_a_height_that_was_asked_for_gives_way(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As the size of feathered tiles does: lower strips are still exact."""
        x = AUTOENCODERS["sd"].latent(48, 24)
        expected = AUTOENCODERS["sd"].load().decode(x)
        self.failing(monkeypatch, 1)
        result = exact("sd", tile_size=192).decode(x)
        assert psnr(result, expected) >= NEAR_ENOUGH
        assert "exact: " in last_lines()

    def out_of_memory(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Strips never have enough; the planned peaks of those that were tried."""
        attempts: list[float] = []
        computed = ExactRun._run

        def fail(self: ExactRun, schedule: Any, *args: Any) -> None:
            attempts.append(schedule.peak)
            if len(attempts) == 1:  # once when all is done, then before anything is
                computed(self, schedule, *args)
            raise OUT_OF_MEMORY("out of memory, on purpose")

        monkeypatch.setattr(ExactRun, "_run", fail)
        return attempts

    def least(self, x: Tensor) -> int:
        """Bytes of the schedule that needs least."""
        with pytest.raises(BudgetTooSmall) as refusal:
            exact("sd", tile_size=0, vram_budget_gb=1e-6).decode(x)
        return int(refusal.value.least) - int(AUTOENCODERS["sd"].load().patcher.model_size())

    def test_down_to_the_least_and_then_an_error_that_names_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = AUTOENCODERS["sd"].latent(24, 12)
        least = self.least(x)
        attempts = self.out_of_memory(monkeypatch)
        with pytest.raises(model_management.OOM_EXCEPTION, match=r"strips of 96 x 192 need 0\.\d+ GB at least"):
            exact("sd").decode(x)
        assert attempts == sorted(attempts, reverse=True)
        assert attempts[-1] == least
        assert len(attempts) <= 6
        assert all("tried again with lower strips" in notice for notice in last_row().notices)

    def test_where_nothing_could_be_planned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Memory ran out each time before there was a plan: an error that says so, or tiles."""
        monkeypatch.setattr(Decode, "recorded", self._full)
        x = AUTOENCODERS["sd"].latent(24, 12)
        with pytest.raises(model_management.OOM_EXCEPTION, match=r"no room to begin exact strips of 96 x 192"):
            exact("sd").decode(x)

    @staticmethod
    def _full(*_: Any, **__: Any) -> None:
        raise OUT_OF_MEMORY("out of memory, on purpose")

    def test_a_video_turns_to_chunks_of_frames(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where strips of rows, which hold some of every frame, had no room however low they were."""
        x, computed = AUTOENCODERS["wan21"].latent(2, 3, cells_in_time=13), ExactRun._run

        def fail(run: ExactRun, *args: Any) -> None:
            if not isinstance(run, ChunkedRun):
                raise OUT_OF_MEMORY("out of memory, on purpose")
            computed(run, *args)

        monkeypatch.setattr(ExactRun, "_run", fail)
        result = decoded(exact("wan21", tile_size=0), x)
        assert psnr(result, decoded(AUTOENCODERS["wan21"].load(), x)) >= NEAR_ENOUGH
        *lower, last = last_row().notices
        assert lower
        assert set(lower) == {"out of memory: tried again with lower strips"}
        assert last == "out of memory: tried again in strips of chunks of frames"
        assert "strips of chunks of frames" in last_lines()

    def test_and_then_in_tiles_where_they_may_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = AUTOENCODERS["sd"].latent(24, 12)
        vae = AUTOENCODERS["sd"].load()
        expected = vae.decode(x)
        too_little = vae.patcher.model_size() + 0.9 * vae.memory_used_decode(x.shape, vae.vae_dtype)  # for one piece
        self.out_of_memory(monkeypatch)
        settings = VAESettings(tile_size=64, overlap=32, vram_budget_gb=too_little / 2**30)
        result = low_memory_vae(vae, settings).decode(x)
        assert 15 < psnr(result, expected) < NEAR_ENOUGH
        assert "feathered (approximate): 10 tiles of 64 x 64 px" in "".join(last_row().lines)
        assert "feathered (approximate), because memory ran out: exact strips of" in last_row().notices[-1]

    def test_an_error_in_the_program_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: Any) -> None:
            raise ZeroDivisionError("a mistake")

        monkeypatch.setattr(ExactRun, "_run", broken)
        with pytest.raises(ZeroDivisionError, match="a mistake"):
            exact("sd").decode(AUTOENCODERS["sd"].latent(24, 12))

    def test_of_auto_in_one_piece(self, monkeypatch: pytest.MonkeyPatch) -> None:
        vae, x = AUTOENCODERS["sd"].load(), input_of("sd", "decode")
        expected = stock("sd", "decode")
        self.failing(monkeypatch, 1)
        result = low_memory_vae(vae, VAESettings(tile_size=16, overlap=8)).decode(x)
        assert psnr(result, expected) >= NEAR_ENOUGH
        assert "exact: " in last_lines()
        assert last_row().notices == ["out of memory in one piece: tried in strips"]


def rows_written(decode: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A forward that writes some rows of its map, which strips cannot follow."""

    def broken(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        x = x * 1
        x[:, :, 1:2].cumsum_(2)
        return decode(self, x, *args, **kwargs)

    return broken


@pytest.fixture
def unfollowed(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """A VAE's decoder does what strips cannot follow; what it makes untiled."""
    vae = AUTOENCODERS["sd"].load()
    decoder = type(vae.first_stage_model.decoder)
    monkeypatch.setattr(decoder, "forward", rows_written(decoder.forward))
    result: Tensor = vae.decode(AUTOENCODERS["sd"].latent(40, 24))
    return result


CAUSE = "'cumsum' overwrites a map in a way that is not known"


def test_exact_is_exact_or_an_error(unfollowed: Tensor) -> None:
    """It gave feathered tiles, with a notice."""
    with pytest.raises(
        CannotBeExact, match=f"method: exact strips cannot follow this VAE .{CAUSE}.*set method to auto"
    ):
        exact("sd", tile_size=128).decode(AUTOENCODERS["sd"].latent(40, 24))


def test_auto_goes_on_in_one_piece_where_that_fits(unfollowed: Tensor) -> None:
    vae = low_memory_vae(AUTOENCODERS["sd"].load(), VAESettings())
    assert torch.equal(vae.decode(AUTOENCODERS["sd"].latent(40, 24)), unfollowed)
    assert last_row().notices == []


def test_auto_is_feathered_where_it_does_not(unfollowed: Tensor) -> None:
    vae = AUTOENCODERS["sd"].load()
    x = AUTOENCODERS["sd"].latent(40, 24)
    room = (vae.patcher.model_size() + 0.5 * vae.memory_used_decode(x.shape, vae.vae_dtype)) / GB
    result = low_memory_vae(vae, VAESettings(tile_size=128, vram_budget_gb=room)).decode(x)
    assert psnr(result, unfollowed) > 15
    assert "feathered (approximate): " in last_lines()
    (notice,) = last_row().notices
    assert f"exact strips are not possible: {CAUSE}" in notice


def test_what_strips_left_goes_before_tiles_come(unfollowed: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    vae, done = AUTOENCODERS["sd"].load(), list[str]()
    room = (vae.patcher.model_size() + 0.5 * vae.memory_used_decode((1, 4, 40, 24), vae.vae_dtype)) / GB
    give_back, run = coding.give_back, TileCoder.run
    monkeypatch.setattr(coding, "give_back", lambda: (done.append("given back"), give_back())[1])
    monkeypatch.setattr(TileCoder, "run", lambda *given: (done.append("tiles"), run(*given))[1])
    for method in ("auto", "feathered"):
        settings = VAESettings(method=method, tile_size=128, vram_budget_gb=room)
        low_memory_vae(vae, settings).decode(AUTOENCODERS["sd"].latent(40, 24))
    assert done == ["given back", "tiles", "tiles"]


def test_its_prediction_says_the_same(unfollowed: Tensor) -> None:
    coding = Coding(exact("sd"), AUTOENCODERS["sd"].latent(40, 24))
    with pytest.raises(CannotBeExact, match="exact strips cannot follow"):
        predict_coding(coding, own_card(torch.device("cpu")))


def test_stock_nodes_behind_it() -> None:
    import nodes

    vae, latent, pixels = exact("sd"), input_of("sd", "decode"), input_of("sd", "encode")
    expected = vae.decode(latent)
    samples = {"samples": latent}
    assert torch.equal(nodes.VAEDecode().decode(vae, samples)[0], expected)
    assert torch.equal(nodes.VAEDecodeTiled().decode(vae, samples, 512)[0], expected)
    assert "exact: " in last_lines()
    mask = torch.zeros(1, *pixels.shape[1:3])
    mask[:, 10:30, 5:20] = 1
    inpaint = nodes.VAEEncodeForInpaint()
    ours = inpaint.encode(vae, pixels, mask)[0]
    assert "exact: " in last_lines()
    theirs = inpaint.encode(AUTOENCODERS["sd"].load(), pixels, mask)[0]
    assert psnr(ours["samples"], theirs["samples"]) >= NEAR_ENOUGH
    assert torch.equal(ours["noise_mask"], theirs["noise_mask"])
