"""What reports and predictions say of memory, against what the card's allocator counts."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import comfy.model_management as model_management
import pytest
import torch
from comfy.cli_args import args as host_arguments

import nodes
from headroom.cli.checks.generated import takes_narrow
from headroom.host.attention.backend import apply_attention
from headroom.host.casting.cast import CastSettings, cast_model
from headroom.host.measure import calibrated
from headroom.host.measure.runs import LOG
from headroom.host.planning.fit import find_fit
from headroom.host.planning.rows import ask
from headroom.host.prediction.kept import KEPT
from headroom.host.prediction.stages import Question, chosen_card
from headroom.host.vae.fallback import BudgetTooSmall
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.wrapper import low_memory_vae
from headroom.memory import Row
from headroom.memory.prediction import ConvolutionCall
from headroom.memory.prediction.calibration import Key, calibrate, load, save
from headroom.memory.render.fit_text import why_nothing_fits
from headroom.vae.exact.planning.workspace import OF_16_BITS, OF_OTHERS

from ..host.autoencoders import AUTOENCODERS
from ..host.families import FAMILIES, VAES, load_vae, psnr, sample
from ..host.test_low_memory_vae import latent_of, picture_of
from ..nightly import NIGHTLY

pytestmark = pytest.mark.usefixtures("one_thread")

MB, GB = 2**20, 2**30

MOST_OFF = 0.02
# Bytes: predictions round each tensor up as the allocator's blocks are, the allocator tells what was asked for.
ROUNDING = 48 * 512
# Strips are planned by what the allocator gives out, a MiB more than was asked for at most blocks: of small pictures
# beside a few MiB of work that is much, beside the weights it is not.
MOST_OFF_IN_STRIPS = 0.1
PLAIN = "stride 1x1 padding 0x0 dilation 1x1 groups 1"
SIGNATURES = [
    f"{dtype} 1x8x{side}x{side} contiguous 8x8x{kernel}x{kernel} contiguous {PLAIN}"
    for dtype in ("float32", "float16")
    for side in (16, 24)
    for kernel in (1, 3)
]


@pytest.fixture(scope="module")
def calibrated_card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The card has no cuDNN and no cuBLAS, and measured by the pack's own calibration it says so."""
    path = tmp_path_factory.mktemp("user") / "calibration.json"
    device = model_management.get_torch_device()
    save(path, Key.of(device), calibrate(SIGNATURES, device))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrated, "calibration_path", lambda: path)
        yield path


def test_the_card_holds_nothing_inside_its_kernels(card: Any, calibrated_card: Path) -> None:
    found = load(calibrated_card, Key.of(model_management.get_torch_device()))
    assert found is not None
    assert not found.failed
    assert found.holds_nothing
    assert found.product == 0


def last_row() -> Row:
    return LOG.rows("", "")[-1]


def on_card() -> int:
    """Bytes that tensors asked for and hold; of tests before this one, once their models have left."""
    model_management.unload_all_models()
    gc.collect()
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


def check(row: Row, before: int, live_off: float = MOST_OFF) -> None:
    """Beyond the weights, and with them, to the rounding of the allocator."""
    everything = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before  # since the weights are there
    ask(row)
    found = row.predicted
    assert found is not None
    assert row.live is not None
    if found.bound:
        assert row.live <= found.activations
        return
    assert row.live == pytest.approx(found.activations, rel=live_off, abs=ROUNDING)
    assert everything == pytest.approx(found.peak, rel=MOST_OFF)


# ----------------------------------------------------------------------------------------- the cases: nodes by families


def attention(backend: str) -> Callable[[Any], Any]:
    return lambda model: apply_attention(model, backend=backend)


def cast(storage: str) -> Callable[[Any], Any]:
    return lambda model: apply_attention(cast_model(model, CastSettings(storage))[0], backend="host")


CHANGES = {
    "host": attention("host"), "sliced": attention("sliced"), "online": attention("online"),
    "math": attention("sdpa_math"), "fp8": cast("float8_e4m3fn_scaled"),
}  # fmt: skip
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SAMPLINGS = [
    *((name, "fp32", node) for name in ("sd15", "sd3", "wan21", "ltxv") for node in ("host", "sliced", "online")),
    *((name, "fp32", "fp8") for name in ("sd3", "ltxv", "wan21")),
    ("flux", "fp32", "sliced"), ("flux", "fp32", "online"), ("flux2", "fp32", "host"), ("sdxl", "fp32", "host"),
    ("chroma", "fp32", "sliced"), ("aura_flow", "fp32", "host"), ("cosmos_predict2", "fp32", "host"),
    ("qwen_image", "fp32", "sliced"), ("hunyuan_video", "fp32", "sliced"), ("lumina2", "fp32", "sliced"),
    ("sd3", "fp16", "host"), ("sd3", "bf16", "host"), ("sd3", "fp16", "sliced"),
]  # fmt: skip
CODINGS = [
    *((name, way, "auto") for name in VAES for way in ("decode", "encode")),
    *((name, way, "exact") for name in VAES for way in ("decode", "encode") if (name, way) != ("wan21", "encode")),
    *((name, "decode", "feathered") for name in ("sd", "flux")),
]
SLICE = {("sd3", "fp32", "host"), ("wan21", "fp32", "sliced"), ("sd3", "fp32", "fp8"), ("ltxv", "fp32", "online"),
         ("sd", "decode", "auto"), ("flux", "decode", "exact"), ("flux", "encode", "auto"),
         ("flux", "decode", "feathered")}  # fmt: skip


def cases(every: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """All of them every night, some in each run."""
    return every if NIGHTLY else [case for case in every if case in SLICE]


@pytest.mark.usefixtures("calibrated_card")
class TestPredictions:
    @pytest.mark.parametrize(("name", "dtype", "node"), cases(SAMPLINGS))
    def test_of_sampling(self, card: Any, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, node: str) -> None:
        monkeypatch.setattr(host_arguments, f"{dtype}_unet", True)
        family = FAMILIES[name]
        loaded = family.load()  # the same at every call
        if dtype != "fp32":
            (loaded,) = nodes.UNETLoader().load_unet(f"{family.file}.safetensors", "default")
        model = CHANGES[node](loaded)  # held: a report asks it
        assert model.model.get_dtype() == DTYPES[dtype]
        before = on_card()
        sample(model, family, latent=family.latent(192, 128))
        check(last_row(), before)

    @pytest.mark.parametrize(("name", "way", "method"), cases(CODINGS))
    def test_of_coding(self, card: Any, monkeypatch: pytest.MonkeyPatch, name: str, way: str, method: str) -> None:
        monkeypatch.setattr(host_arguments, "fp32_vae", True)
        tile = {"tile_size": 64, "overlap": 16} if method == "feathered" else {}
        vae = low_memory_vae(load_vae(name), VAESettings(method=method, **tile))
        before = on_card()
        if way == "decode":
            vae.decode(latent_of(name, 96, 64))
        else:
            vae.encode(picture_of(96, 64, frames=5 if name in ("wan21", "ltx") else 1))
        check(last_row(), before, MOST_OFF_IN_STRIPS if method == "exact" else MOST_OFF)


@pytest.mark.parametrize("way", ["decode", "encode"])
class TestStripsOnTheCard:
    @pytest.fixture
    def coding(self, card: Any, monkeypatch: pytest.MonkeyPatch, way: str) -> Callable[[float], Any]:
        monkeypatch.setattr(host_arguments, "fp32_vae", True)
        vae, x = load_vae("sd"), latent_of("sd", 384, 320) if way == "decode" else picture_of(384, 320)
        return lambda gb: getattr(low_memory_vae(vae, VAESettings("exact", vram_budget_gb=gb)), way)(x)

    def test_nothing_waits_for_the_garbage_collector(self, card: Any, coding: Callable[[float], Any]) -> None:
        """Inputs that were copied, maps, weights that were cast."""
        coding(1.0)
        gc.collect()
        gc.disable()
        try:
            before = card.allocated
            coding(1.0)
            assert card.allocated == before
        finally:
            gc.enable()

    def test_the_budget_is_kept_with_the_input_on_the_card(self, card: Any, coding: Callable[[float], Any]) -> None:
        """In bytes that the allocator gave out, weights included."""
        with pytest.raises(BudgetTooSmall) as refusal:
            coding(1e-3)
        least = refusal.value.least
        for budget in (least, 1.05 * least, 1.2 * least, 1.5 * least):
            model_management.unload_all_models()
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = card.allocated
            coding(budget / GB)
            assert torch.cuda.max_memory_allocated() - before <= budget


class TestWhatConvolutionsHold:
    """On a card whose convolutions hold as much as plans count at most, which is no measurement of a real one's."""

    def test_a_calibration_finds_it(self, card: Any) -> None:
        card.set(workspace=OF_OTHERS)
        found = calibrate(SIGNATURES, model_management.get_torch_device())
        assert not found.failed
        for line, held in found.convolutions.items():
            call = ConvolutionCall.parse(line)
            x, weight, *_ = arguments = call.arguments(torch.device("meta"))
            moved = x.nbytes + weight.nbytes + torch.convolution(*arguments).nbytes
            assert held == pytest.approx(OF_OTHERS * moved, abs=512)

    @pytest.mark.parametrize(("way", "dtype", "held"), [("decode", "fp32", OF_OTHERS), ("encode", "bf16", OF_16_BITS)])
    def test_the_budget_is_kept_with_it_and_foretold(
        self, card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, dtype: str, held: float
    ) -> None:
        """Without a calibration; in bytes that the allocator gave out, weights included."""
        monkeypatch.setattr(calibrated, "calibration_path", lambda: tmp_path / "none.json")  # others left one
        monkeypatch.setattr(host_arguments, f"{dtype}_vae", True)
        vae, x = AUTOENCODERS["sd"].build(), latent_of("sd", 384, 320) if way == "decode" else picture_of(384, 320)
        assert vae.vae_dtype == DTYPES[dtype]
        with pytest.raises(BudgetTooSmall) as refusal:
            getattr(low_memory_vae(vae, VAESettings("exact", vram_budget_gb=1e-3)), way)(x)
        card.set(workspace=held, shapes=1)
        budget = 1.3 * refusal.value.least
        model_management.unload_all_models()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = card.allocated
        low = low_memory_vae(vae, VAESettings("exact", vram_budget_gb=budget / GB))  # held: a report asks it
        getattr(low, way)(x)
        assert torch.cuda.max_memory_allocated() - before <= budget
        row, planned = last_row(), last_row().predicted
        assert row.live is not None
        assert planned is not None
        assert row.live <= planned.activations
        ask(row)
        found = row.predicted
        assert found is not None
        assert row.live <= found.activations <= planned.activations
        assert found.bound or row.live == pytest.approx(found.activations, rel=MOST_OFF_IN_STRIPS)


def test_other_models_and_the_weights_do_not_count(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The VAE's weights come after the node has begun, and another model leaves for them."""
    monkeypatch.setattr(host_arguments, "fp32_vae", True)
    monkeypatch.setattr(host_arguments, "fp32_unet", True)
    other = FAMILIES["flux"].load()
    model_management.load_models_gpu([other])
    model_management.unload_all_models()
    vae, latent = load_vae("flux"), latent_of("flux", 96, 64)
    low_memory_vae(vae, VAESettings()).decode(latent)
    alone = last_row().live
    model_management.unload_all_models()
    model_management.load_models_gpu([other])
    card.set(vram_mb=1400 if takes_narrow() else 1700)  # the host wants all of it; old ones build a wider decoder
    low_memory_vae(vae, VAESettings(vram_budget_gb=0.5)).decode(latent)
    assert last_row().live == alone
    assert alone < 0.1 * vae.patcher.model_size()


# ------------------------------------------------------------------------------------------------ when memory runs out


@cache
def small_vae() -> Any:
    """In float32, whatever dtype tests before these have loaded one in."""
    return AUTOENCODERS["sd"].build()


class TestOutOfMemory:
    """Each rung: the host's other models, lower strips, tiles where they may be, an error with the least."""

    @pytest.fixture(autouse=True)
    def _a_host_that_believes_in_room(self, card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where a driver counts the machine's memory as the card's."""
        model_management.unload_all_models()
        gc.collect()
        self.before = card.allocated  # what tests of other models left
        monkeypatch.setattr(host_arguments, "fp32_vae", True)
        monkeypatch.setattr(
            model_management,
            "get_free_memory",
            lambda dev=None, torch_free_too=False: (8 * GB, 8 * GB) if torch_free_too else 8 * GB,
        )

    def decode(self, method: str = "exact", size: tuple[int, int] = (24, 16), **settings: Any) -> torch.Tensor:
        x = AUTOENCODERS["sd"].latent(*size)
        vae = low_memory_vae(small_vae(), VAESettings(method=method, vram_budget_gb=4.0, **settings))
        return vae.decode(x)

    def leave(self, card: Any, mb: float) -> None:
        """So much room beside what is there."""
        gc.collect()
        torch.cuda.empty_cache()
        card.set(vram_mb=torch.cuda.memory_reserved() / MB + mb, races=True)

    def after(self, card: Any) -> None:
        """Nothing but weights is left."""
        gc.collect()
        weights = small_vae().patcher.model_size()
        assert card.allocated - self.before <= weights + 0.1 * MB
        assert card.races == []

    def test_others_leave_and_then_strips_are_lower(self, card: Any) -> None:
        expected = self.decode()
        other = FAMILIES["flux"].load()
        model_management.load_models_gpu([other])
        self.leave(card, 23)  # torch takes 20 MiB at a time: with what the other model leaves it is enough
        assert torch.equal(self.decode(), expected)
        assert last_row().notices == ["out of memory: tried again without the other models on the device"]
        assert not other.loaded_size()
        self.leave(card, 15)
        assert psnr(self.decode(), expected) >= 90
        assert "out of memory: tried again with lower strips" in last_row().notices
        assert "exact: " in "".join(last_row().lines)
        self.after(card)

    def test_the_last_rung_keeps_maps_in_host_memory(self, card: Any) -> None:
        expected = self.decode(size=(96, 64))
        assert "host memory" not in "".join(last_row().lines)
        self.leave(card, 50)
        assert psnr(self.decode(size=(96, 64)), expected) >= 90
        assert "out of memory: tried again with lower strips" in last_row().notices
        assert "stored maps in host memory" in "".join(last_row().lines)
        self.after(card)

    def test_an_error_that_names_the_least(self, card: Any) -> None:
        self.decode()
        self.leave(card, 0)
        with pytest.raises(model_management.OOM_EXCEPTION, match=r"strips of 128 x 192 need 0\.\d+ GB at least"):
            self.decode()
        self.after(card)

    @pytest.mark.parametrize("error", [model_management.InterruptProcessingException(), ValueError("a mistake")])
    def test_what_ends_it_in_the_middle_leaves_nothing(
        self, card: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        self.decode()
        convolution, calls = torch.nn.functional.conv2d, []

        def ending(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            if len(calls) == 40:
                raise error
            return convolution(*args, **kwargs)

        monkeypatch.setattr(torch.nn.functional, "conv2d", ending)
        self.leave(card, 1024)
        with pytest.raises(type(error)):
            self.decode()
        assert last_row().outcome == ("failed" if isinstance(error, ValueError) else "interrupted")
        calls.clear()
        error.__traceback__ = None
        self.after(card)


def test_make_it_fit_counts_what_this_card_keeps(
    card: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calibrated_card: Path
) -> None:
    """cuBLAS's share stands between what strips need and what is allowed: where it is measured to be nothing, they fit;
    where it is not, the refusal names a size that would do."""
    monkeypatch.setattr(host_arguments, "fp32_vae", True)
    model, vae, latent = FAMILIES["sd15"].load(), load_vae("sd"), latent_of("sd", 128, 96)
    with pytest.raises(BudgetTooSmall) as refusal:
        low_memory_vae(vae, VAESettings("exact", vram_budget_gb=1e-6)).decode(latent)
    allowed = refusal.value.least + 2 * MB

    def fit() -> Any:
        question = Question(model, {"samples": latent}, vae, positive=FAMILIES["sd15"].conditioning(1))
        return find_fit(question, chosen_card("this machine", allowed / 0.85 / GB, model.load_device))

    assert fit().vae is not None
    monkeypatch.setattr(calibrated, "calibration_path", lambda: tmp_path / "none.json")
    KEPT.clear()
    refused = fit()
    assert refused.vae is None
    named = re.search(r"strips need (\d+) MB at least", why_nothing_fits(refused))
    assert named
    assert int(named[1]) * MB > allowed
