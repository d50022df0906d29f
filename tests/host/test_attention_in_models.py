"""HeadroomAttention around the host's own models and sampler, in process."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import comfy.model_base
import pytest
import torch

import headroom
from headroom.host.attention.backend import apply_attention
from headroom.host.core.compat import IN_THREAD, OVERRIDE
from headroom.host.measure.runs import LOG
from headroom.memory import Row
from headroom.nodes.attention import HeadroomAttention

from ..nightly import grid
from .families import FAMILIES, psnr, sample, stock_latents

BACKENDS = ("auto", "host", "sdpa", "sdpa_flash", "sdpa_math", "sliced", "online")
ROOT = Path(headroom.__file__).parent
PAGE = ROOT / "web" / "docs" / "HeadroomAttention.md"
# Where the host computes attention of models that do not say which block it is.
UNNAMED = {
    "SD3": "comfy.ldm.modules.diffusionmodules.mmdit",
    "LTX-Video": "comfy.ldm.lightricks.model comfy.ldm.lightricks.av_model",
    "AuraFlow": "comfy.ldm.aura.mmdit",
    "HiDream-I1": "comfy.ldm.hidream.model",
    "Cosmos": "comfy.ldm.cosmos.model comfy.ldm.cosmos.blocks comfy.ldm.cosmos.predict2",
    "Anima": "comfy.ldm.cosmos.predict2",
    "OmniGen2": "comfy.ldm.omnigen.omnigen2",
    "Boogu": "comfy.ldm.boogu.model",
    "Ideogram 4": "comfy.ldm.ideogram4.model",
    "Mochi": "comfy.ldm.genmo.joint_model.asymm_models_joint",
    "CogVideoX": "comfy.ldm.cogvideo.model",
    "PixelDiT": "comfy.ldm.pixeldit.model",
    "MiniMax H3": "comfy.ldm.minimax.model",
    "Stable Cascade": "comfy.ldm.cascade.common comfy.ldm.cascade.stage_b comfy.ldm.cascade.stage_c",
    "Stable Audio": "comfy.ldm.audio.dit",
    "ACE-Step 1": "comfy.ldm.ace.model comfy.ldm.ace.attention",
    "Hunyuan3D 2.0": "comfy.ldm.hunyuan3d.model comfy.ldm.flux.layers",
    "TRELLIS.2": "comfy.ldm.trellis2.model",
    "TripoSplat": "comfy.ldm.triposplat.model",
}
UNREACHED = {
    "Hunyuan-DiT": "comfy.ldm.hydit.attn_layers",
    "PixArt": "comfy.ldm.pixart.blocks",
    "SeedVR2": "comfy.ldm.seedvr.attention",
    "ERNIE-Image": "comfy.ldm.ernie.model",
    "ACE-Step 1.5": "comfy.ldm.ace.ace_step15",
    "Hunyuan3D 2.1": "comfy.ldm.hunyuan3dv2_1.hunyuandit",
    "MiniMax Music": "comfy.ldm.minimax_music.dit",
}
DEFAULTS = {"blocks": "all", "start_percent": 0.0, "end_percent": 1.0, "slice_rows": 0, "min_tokens": 0}


def flat(page: Path) -> str:
    """A page without its line breaks."""
    return " ".join(page.read_text().split())


def codes_of(modules: str) -> list[str]:
    """Source of the host's modules; older hosts lack some."""
    folder = Path(comfy.model_base.__file__).parents[1]
    files = [folder.joinpath(*name.split(".")).with_suffix(".py") for name in modules.split()]
    return [file.read_text() for file in files if file.exists()]


def last_row() -> Row:
    """Outside a prompt the run log knows no node: the latest row of the empty key is the one just run."""
    return LOG.rows("", "")[-1]


def backends_that_ran() -> Counter[str]:
    assert last_row().attention is not None
    ran: Counter[str] = Counter()
    for key, calls in last_row().attention.snapshot().items():
        ran[key.backend.split(" ")[0]] += calls
    return ran


@pytest.mark.parametrize(("name", "backend"), grid(list(FAMILIES), BACKENDS, each=2))
def test_same_latents_as_stock(name: str, backend: str) -> None:
    family = FAMILIES[name]
    settings = DEFAULTS | {"backend": backend, "slice_rows": 48}
    model = HeadroomAttention.execute(family.load(), **settings).result[0]
    result = sample(model, family)
    assert psnr(result, stock_latents(name)) >= 80
    expected = {"auto": "sdpa"}.get(backend, backend)
    assert set(backends_that_ran()) == {expected}
    assert last_row().attention.total > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_attention_matters_to_the_small_models(name: str) -> None:
    """If it did not, the test above would compare nothing."""
    family = FAMILIES[name]
    model = family.load().clone()
    model.model_options["transformer_options"][OVERRIDE] = lambda func, *args, **kwargs: func(*args, **kwargs) * 0.9
    assert psnr(sample(model, family), stock_latents(name)) < 60


@pytest.mark.parametrize("name", ["sd15", "flux", "wan21"])
def test_a_branch_beside_a_patched_one_is_bit_identical(name: str) -> None:
    family = FAMILIES[name]
    model = family.load()
    before = sample(model, family)
    patched = apply_attention(model, backend="online")
    sample(patched, family)
    assert torch.equal(sample(model, family), before)
    assert torch.equal(sample(model.clone(), family), before)
    assert OVERRIDE not in model.model_options["transformer_options"]


def test_with_several_gpus_no_kernel_is_switched_on_for_all_of_them() -> None:
    """The host says so to each of its threads; torch's switches are the whole process's."""
    family = FAMILIES["flux"]
    model = apply_attention(family.load(), backend="sdpa_math")
    model.model_options["transformer_options"][IN_THREAD] = torch.device("cpu")
    assert psnr(sample(model, family), stock_latents("flux")) >= 80
    assert set(backends_that_ran()) == {"sdpa"}


class TestWhere:
    def test_blocks_of_a_unet(self) -> None:
        family = FAMILIES["sd15"]
        everything = self.places(apply_attention(family.load(), backend="online"), family, "online")
        chosen = self.places(
            apply_attention(family.load(), backend="online", blocks="middle, output"), family, "online"
        )
        inner = self.places(apply_attention(family.load(), backend="online", blocks="inner"), family, "online")
        assert chosen == {place for place in everything if place[0] != "input"}
        assert {kind for kind, _ in everything} == {"input", "middle", "output"}
        ends = everything - inner
        assert ends == {min(p for p in everything if p[0] == "input"), max(p for p in everything if p[0] == "output")}

    def test_blocks_of_a_transformer(self) -> None:
        family = FAMILIES["flux"]
        chosen = self.places(
            apply_attention(family.load(), backend="sliced", blocks="double:1, single:2-3"), family, "sliced"
        )
        assert chosen == {("double", 1), ("single", 2), ("single", 3)}
        inner = self.places(apply_attention(family.load(), backend="sliced", blocks="inner"), family, "sliced")
        assert inner == {("double", 1), ("single", 0), ("single", 1), ("single", 2)}

    def test_inner_blocks_of_a_single_list(self) -> None:
        family = FAMILIES["wan21"]
        inner = self.places(apply_attention(family.load(), backend="online", blocks="inner"), family, "online")
        assert inner == {("double", 1), ("double", 2)}

    @pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.names_blocks])
    def test_models_that_name_no_blocks_stay_with_the_host(self, name: str) -> None:
        family = FAMILIES[name]
        sample(apply_attention(family.load(), backend="online", blocks="inner"), family)
        assert set(backends_that_ran()) == {"host"}

    @pytest.mark.parametrize("name", sorted(UNNAMED))
    def test_what_the_help_says_of_blocks_without_names(self, name: str) -> None:
        """By the host's code: such a model hands on the options by which attention is reached, and names no block."""
        assert name in flat(PAGE)
        assert name in flat(ROOT / "docs" / "limits.md")
        for code in codes_of(UNNAMED[name]):
            assert "transformer_options=transformer_options" in code
            assert not re.search(r"""\[["'](block_type|block)["']\] *=""", code)

    @pytest.mark.parametrize("name", sorted(UNREACHED))
    def test_what_the_help_says_is_not_reached(self, name: str) -> None:
        assert name in flat(PAGE)
        assert name in flat(ROOT / "docs" / "limits.md")
        assert all("transformer_options=transformer_options" not in code for code in codes_of(UNREACHED[name]))

    @staticmethod
    def places(model: Any, family: Any, backend: str) -> set[tuple[str, int] | None]:
        sample(model, family)
        assert last_row().attention is not None
        return {key.block for key in last_row().attention.snapshot() if key.backend == backend}


class TestWhen:
    @pytest.mark.parametrize(("start", "end", "share"), [(0.0, 0.5, 0.5), (0.5, 1.0, 0.5), (0.0, 1.0, 1.0)])
    def test_part_of_the_steps(self, start: float, end: float, share: float) -> None:
        family = FAMILIES["sd15"]
        model = apply_attention(family.load(), backend="online", start_percent=start, end_percent=end)
        sample(model, family, steps=4)
        ran = backends_that_ran()
        assert ran["online"] / ran.total() == pytest.approx(share, abs=0.26)
        assert (ran["host"] > 0) == (share < 1)

    def test_a_schedule_changed_behind_ours_moves_the_steps(self) -> None:
        """Half of sampling is another noise level in the schedule of the model that samples."""
        from comfy_extras.nodes_model_advanced import ModelSamplingFlux

        family = FAMILIES["flux"]
        part = {"backend": "online", "start_percent": 0.0, "end_percent": 0.5}

        def shifted(model: Any) -> Any:
            return ModelSamplingFlux().patch(model, 3.0, 0.5, 1024, 1024)[0]

        counted = []
        for model in (apply_attention(shifted(family.load()), **part), shifted(apply_attention(family.load(), **part))):
            sample(model, family, steps=6)
            counted.append(backends_that_ran())
        assert counted[0] == counted[1]
        assert counted[0]["online"] == counted[0].total() / 2

    @pytest.mark.parametrize(
        ("min_tokens", "ran"), [(64, {"online"}), (65, {"online", "host"}), (256, {"online", "host"}), (257, {"host"})]
    )
    def test_short_calls_stay_with_the_host(self, min_tokens: int, ran: set[str]) -> None:
        """A 128 px picture has 256 tokens in this UNet's outer blocks and 64 in its inner ones."""
        family = FAMILIES["sd15"]
        sample(apply_attention(family.load(), backend="online", min_tokens=min_tokens), family, steps=1)
        assert set(backends_that_ran()) == ran


class TestChain:
    def test_a_foreign_override_keeps_what_is_not_ours(self) -> None:
        family = FAMILIES["flux"]
        seen: list[str] = []

        def foreign(func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            seen.append(kwargs["transformer_options"]["block_type"])
            return func(*args, **kwargs)

        model = family.load().clone()
        model.model_options["transformer_options"][OVERRIDE] = foreign
        sample(apply_attention(model, backend="online", blocks="double:*"), family)
        assert set(seen) == {"single"}
        assert backends_that_ran()["online"] > 0
        assert backends_that_ran()["earlier"] == len(seen)

    def test_two_of_ours_share_the_blocks(self) -> None:
        family = FAMILIES["flux"]
        first = apply_attention(family.load(), backend="sliced", blocks="double:*")
        second = apply_attention(first, backend="online", blocks="single:*")
        sample(second, family)
        keys = last_row().attention.snapshot()
        assert {(key.block[0], key.backend) for key in keys} == {("double", "sliced"), ("single", "online")}
        sample(first, family)
        assert set(backends_that_ran()) == {"sliced", "host"}, "the later node must not reach into the earlier one"

    def test_a_node_behind_ours_gets_what_we_leave(self) -> None:
        """One that takes the slot without handing calls on would switch ours off, and nobody would know."""
        family = FAMILIES["flux"]
        seen: list[str] = []

        def foreign(func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            seen.append(kwargs["transformer_options"]["block_type"])
            return func(*args, **kwargs)

        first = apply_attention(family.load(), backend="sliced", blocks="single:0")
        model = apply_attention(first, backend="online", blocks="double:*")
        model.model_options["transformer_options"][OVERRIDE] = foreign
        sample(model, family)
        assert last_row().attention is not None
        ran = {(key.block, key.backend) for key in last_row().attention.snapshot()}
        assert {("double", 0), ("double", 1)} == {block for block, backend in ran if backend == "online"}
        assert {("single", 0)} == {block for block, backend in ran if backend == "sliced"}
        assert set(seen) == {"single"}
        assert any("a node behind this one" in notice for notice in last_row().notices)
        assert model.model_options["transformer_options"][OVERRIDE] is foreign, "only the run's own options change"

    def test_a_node_between_two_of_ours_leaves_both_what_they_chose(self) -> None:
        family = FAMILIES["flux"]
        seen: list[str] = []

        def foreign(func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            seen.append(kwargs["transformer_options"]["block_type"])
            return func(*args, **kwargs)

        between = apply_attention(family.load(), backend="sliced", blocks="single:0")
        between.model_options["transformer_options"][OVERRIDE] = foreign
        sample(apply_attention(between, backend="online", blocks="double:*"), family)
        ran = {(key.block, key.backend) for key in last_row().attention.snapshot()}
        assert {block[0] for block, backend in ran if backend == "online"} == {"double"}
        assert {block for block, backend in ran if backend == "sliced"} == {("single", 0)}
        assert set(seen) == {"single"}


class TestRow:
    def test_time_and_memory_are_measured(self) -> None:
        family = FAMILIES["sd15"]
        sample(apply_attention(family.load(), backend="auto"), family)
        row = last_row()
        assert row.outcome == "done"
        assert row.seconds > 0
        assert row.peak.highest > 0

    def test_a_failed_run_says_so_and_leaves_the_model(self) -> None:
        family = FAMILIES["flux"]
        before = sample(family.load(), family)

        def broken(func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            raise RuntimeError("on purpose")

        model = family.load().clone()
        model.model_options["transformer_options"][OVERRIDE] = broken
        with pytest.raises(RuntimeError, match="on purpose"):
            sample(apply_attention(model, backend="online", blocks="single:*"), family)
        assert last_row().outcome == "failed"
        assert torch.equal(sample(family.load(), family), before)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"backend": "warp"}, "backend: 'warp' is unknown; choose one of auto, host, sdpa, sdpa_flash, "),
        ({"blocks": "double:x"}, "blocks: cannot read 'double:x'"),
        ({"start_percent": 0.6, "end_percent": 0.5}, "start_percent"),
    ],
)
def test_bad_settings(settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        apply_attention(FAMILIES["flux"].load(), **settings)
