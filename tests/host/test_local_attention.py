"""HeadroomLocalAttention around the host's own models and sampler, in process."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headroom.attention import AttentionCall, parse_blocks
from headroom.attention.local import PATTERNS, TokenGrid, Window
from headroom.host.attention.backend import apply_attention
from headroom.host.attention.grids import SHAPES, Shapes, find_grid
from headroom.host.attention.local import (
    ERRORS,
    LocalAttentionOverride,
    MeasuredErrors,
    apply_local_attention,
    make_pattern,
)
from headroom.host.attention.override import Selection
from headroom.host.core import compat
from headroom.host.core.compat import OVERRIDE
from headroom.host.core.families import picture_only
from headroom.host.measure.runs import LOG
from headroom.memory import Row
from headroom.nodes.local_attention import HeadroomLocalAttention

from ..nightly import grid, some_of
from .families import FAMILIES, Family, psnr, sample, stock_latents

UNETS = ("sd15", "sdxl")
MASKED = ("qwen_image", "hunyuan_video")  # their conditioning here has padding, so that every call has a mask
UNKNOWN = ("hidream",)  # text of several encoders, whose lengths no call says
TAKEN = [name for name in FAMILIES if name not in (*MASKED, *UNKNOWN)]
ALL_SEEN = Window(radius=64)


def last_row() -> Row:
    return LOG.rows("", "")[-1]


def ran() -> Counter[str]:
    """Calls by the backend's first word."""
    assert last_row().attention is not None
    found: Counter[str] = Counter()
    for key, calls in last_row().attention.snapshot().items():
        found[key.backend.split(" ")[0]] += calls
    return found


def reasons() -> set[str]:
    assert last_row().attention is not None
    return {key.reason for key in last_row().attention.snapshot()}


def oblong(family: Family) -> Tensor:
    """Rows and columns differ, so that a mistaken order shows; not empty, which the host treats in its own way."""
    return family.latent(4 * family.reach * 2, 6 * family.reach * 2) + 0.1


class Watched:
    """An override that keeps the queries of the first call that has a grid, and the grid.

    Calls before it, which are refiners, give nothing, so that they do not mix the tokens.
    """

    def __init__(self) -> None:
        self.queries: Tensor | None = None
        self.grid: TokenGrid | None = None

    def __call__(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        call = replace(AttentionCall.bind(*args, **kwargs), mask=None)
        grid = find_grid(call, kwargs["transformer_options"])
        if self.queries is None and isinstance(grid, TokenGrid):
            self.queries, self.grid = call.q.detach().clone(), grid
        out: Tensor = func(*args, **kwargs)
        return out if self.queries is not None else torch.zeros_like(out)


def watched(family: Family, latent: Tensor) -> Watched:
    import nodes

    watch = Watched()
    model = apply_local_attention(family.load(), ALL_SEEN, blocks="all")
    # Ours stays where it says the shapes; this one stands in its place and only looks.
    override = model.model_options["transformer_options"][OVERRIDE]
    model.model_options["transformer_options"][OVERRIDE] = Looking(override.selection, watch=watch)
    # Half the noise: a flow model that starts from all of it does not see the latent.
    text = family.conditioning(1)
    nodes.KSampler().sample(model, 7, 1, 1.0, "euler", "normal", text, text, {"samples": latent}, denoise=0.5)
    return watch


class Looking(LocalAttentionOverride):
    """Hands every call to the watch."""

    def __init__(self, selection: Any, watch: Watched) -> None:
        super().__init__(selection)
        object.__setattr__(self, "watch", watch)

    def __call__(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        return self.watch(func, *args, **kwargs)  # type: ignore[attr-defined]


def test_patches_that_the_border_cuts_are_tokens_too() -> None:
    grid = watched(FAMILIES["flux"], FAMILIES["flux"].latent(136, 120) + 0.1).grid
    assert grid is not None
    assert (grid.height, grid.width) == (9, 8)  # of 17 x 15 cells, two by two


@pytest.mark.parametrize(
    ("name", "where"), grid([name for name in FAMILIES if name not in UNKNOWN], [(0, 0), (0, 7), (5, 2)])
)
def test_a_cell_of_the_latent_is_the_token_that_the_grid_says(name: str, where: tuple[int, int]) -> None:
    """One cell changes; in the first call it is that token's query that changes, and in a transformer no other's."""
    family = FAMILIES[name]
    latent = oblong(family)
    row, column = where
    changed = latent.clone()
    changed[..., row, column] += 3.0
    plain, other = watched(family, latent), watched(family, changed)
    grid = plain.grid
    assert grid is not None
    assert plain.queries is not None
    assert other.queries is not None
    moved = (other.queries - plain.queries).double().norm(dim=3).sum((0, 1))
    cells = (latent.shape[-2] // grid.height, latent.shape[-1] // grid.width)
    token = grid.before + (row // cells[0]) * grid.width + column // cells[1]
    if latent.ndim == 5:  # the cell was changed in every frame
        assert (grid.frames, grid.height * cells[0], grid.width * cells[1]) == tuple(latent.shape[-3:])
    tokens = {token + frame * grid.height * grid.width for frame in range(grid.frames)}
    if name in UNETS:  # convolutions spread it, and a group norm a little everywhere
        y, x = divmod(int(moved.argmax()), grid.width)
        assert abs(y - row // cells[0]) <= 1
        assert abs(x - column // cells[1]) <= 1
    else:
        assert set(moved.nonzero().flatten().tolist()) == tokens


@pytest.mark.parametrize("name", TAKEN)
def test_a_window_that_sees_all_is_stock(name: str) -> None:
    family = FAMILIES[name]
    latent = oblong(family)
    stock = sample(family.load(), family, latent=latent)
    result = sample(apply_local_attention(family.load(), ALL_SEEN), family, latent=latent)
    assert psnr(result, stock) >= 80
    assert ran()["local"] > 0


@pytest.mark.parametrize("name", some_of(list(PATTERNS), 2))
def test_every_pattern_makes_a_picture_near_the_dense_one(name: str) -> None:
    family = FAMILIES["sd15"]
    model = apply_local_attention(family.load(), make_pattern(name), max_error=10)
    result = sample(model, family)
    assert result.isfinite().all()
    assert ran()["local"] > 0
    assert psnr(result, stock_latents("sd15")) > 20
    assert any("relative error" in line for line in last_row().lines)


@pytest.mark.parametrize(("name", "reason"), [*((n, "it has a mask") for n in MASKED), ("hidream", "are not known")])
def test_what_is_not_clear_stays_dense_and_says_why(name: str, reason: str) -> None:
    family = FAMILIES[name]
    result = sample(apply_local_attention(family.load(), make_pattern("kv_pool")), family)
    assert torch.equal(result, stock_latents(name))
    assert ran()["local"] == 0
    assert any(reason in why for why in reasons())
    assert "local attention: no call could be taken" in last_row().lines


def test_cross_attention_stays_dense() -> None:
    family = FAMILIES["wan21"]
    sample(apply_local_attention(family.load(), make_pattern("kv_pool"), max_error=10), family)
    assert ran()["local"] == ran()["host"]
    assert "local attention runs dense: cross attention" in reasons()


def test_text_as_long_as_the_map_is_not_told_from_it() -> None:
    """Self and cross attention would look alike: both stay dense."""
    family = FAMILIES["sd15"]
    latent = family.latent(8 * 8, 5 * 8)  # 40 tokens, as the text
    stock = sample(family.load(), family, latent=latent)
    model = apply_local_attention(family.load(), make_pattern("kv_pool"), max_error=10)
    result = sample(model, family, latent=latent)
    assert any("look alike" in why for why in reasons())
    assert psnr(result, stock) > 20


class TestError:
    def test_blocks_above_it_run_dense_from_the_second_step(self) -> None:
        family = FAMILIES["flux"]
        sample(apply_local_attention(family.load(), make_pattern("kv_pool"), max_error=0.0), family, steps=4)
        calls = ran()
        assert calls["local"] * 3 == calls["host"], "one step of four"
        assert any("error above 0" in why for why in reasons())
        assert sum("dense after the first step" in line for line in last_row().lines) == 6

    def test_a_bound_between_them_parts_the_blocks(self) -> None:
        family = FAMILIES["flux"]
        sample(apply_local_attention(family.load(), make_pattern("kv_pool"), max_error=10), family, steps=4)
        errors = sorted(float(line.rsplit(" ", 1)[1]) for line in last_row().lines if " tokens: " in line)
        assert errors[0] < errors[-1]
        bound = (errors[0] + errors[-1]) / 2
        sample(apply_local_attention(family.load(), make_pattern("kv_pool"), max_error=bound), family, steps=4)
        calls = ran()
        assert 0 < calls["host"] < 3 / 4 * calls.total()

    def test_a_larger_window_has_a_smaller_one(self) -> None:
        family = FAMILIES["sd15"]
        worst = []
        for radius in (1, 3, 6):
            pattern = Window(radius=radius, block=4)
            sample(apply_local_attention(family.load(), pattern, max_error=10), family, steps=1)
            worst.append(max(float(line.rsplit(" ", 1)[1]) for line in last_row().lines if " tokens: " in line))
        assert worst == sorted(worst, reverse=True)
        assert worst[0] > 2 * worst[-1]

    def test_a_second_run_measures_anew(self) -> None:
        """Nothing is remembered that could change a result."""
        family = FAMILIES["flux"]
        model = apply_local_attention(family.load(), make_pattern("kv_pool"), max_error=0.0)
        first = sample(model, family, steps=3)
        assert torch.equal(sample(model, family, steps=3), first)
        assert ran()["local"] > 0

    def test_an_error_that_is_no_number_is_no_small_one(self) -> None:
        errors = MeasuredErrors()
        for error in (0.01, math.nan, 0.02):
            errors.add((None, 64), torch.tensor(error))
        errors.settle()
        assert errors.known() == {(None, 64): math.inf}

    def test_what_is_measured_in_a_training_keeps_no_graph(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It lies there until the next step, and what it was computed from with it."""
        kept: list[Tensor] = []
        monkeypatch.setattr(MeasuredErrors, "add", lambda self, key, error: kept.append(error))
        override = LocalAttentionOverride(Selection(parse_blocks("all")), pattern=Window(radius=1, block=4))
        shapes = Shapes(layout=picture_only, network="", grid=(1, 8, 8), text=5)
        options = {SHAPES: shapes, ERRORS: {override.identity: MeasuredErrors()}}
        with torch.inference_mode(False), torch.enable_grad():
            q = torch.randn(1, 64, 8, requires_grad=True)
            assert override(None, q, q, q, 2, transformer_options=options).requires_grad
        assert [error.requires_grad for error in kept] == [False]


class TestTogether:
    def test_calls_that_are_not_local_go_to_the_attention_node(self) -> None:
        family = FAMILIES["sd15"]
        below = apply_attention(family.load(), backend="online")
        sample(apply_local_attention(below, make_pattern("kv_pool"), blocks="input, output", max_error=10), family)
        assert set(ran()) == {"local", "online"}

    def test_the_attention_node_behind_takes_its_blocks(self) -> None:
        family = FAMILIES["flux"]
        local = apply_local_attention(family.load(), make_pattern("kv_pool"), max_error=10)
        sample(apply_attention(local, backend="online", blocks="single:*"), family)
        assert last_row().attention is not None
        places = {(key.block[0], key.backend.split(" ")[0]) for key in last_row().attention.snapshot()}
        assert places == {("double", "local"), ("single", "online")}

    def test_errors_are_measured_with_another_node_behind(self) -> None:
        family = FAMILIES["flux"]
        model = apply_local_attention(family.load(), make_pattern("kv_pool"), max_error=0.0)
        model.model_options["transformer_options"][OVERRIDE] = lambda func, *args, **kwargs: func(*args, **kwargs)
        sample(model, family, steps=4)
        assert ran()["local"] * 3 == ran()["earlier"]
        assert any("relative error" in line for line in last_row().lines)

    def test_two_local_nodes_share_the_blocks(self) -> None:
        family = FAMILIES["flux"]
        first = apply_local_attention(family.load(), make_pattern("kv_pool"), blocks="double:*", max_error=10)
        second = apply_local_attention(first, Window(radius=1, block=2), blocks="single:*", max_error=10)
        sample(second, family)
        assert last_row().attention is not None
        places = {(key.block[0], key.backend) for key in last_row().attention.snapshot()}
        assert places == {("double", "local kv_pool (approximate)"), ("single", "local window (approximate)")}

    def test_a_branch_beside_it_is_bit_identical(self) -> None:
        family = FAMILIES["sd15"]
        model = family.load()
        before = sample(model, family)
        sample(apply_local_attention(model, make_pattern("kv_pool")), family)
        assert torch.equal(sample(model, family), before)
        assert OVERRIDE not in model.model_options["transformer_options"]

    def test_reference_pictures_keep_it_dense(self) -> None:
        family = FAMILIES["flux"]
        positive = family.conditioning(1)
        positive[0][1]["reference_latents"] = [family.latent(64, 64) + 0.3]
        import nodes

        model = apply_local_attention(family.load(), make_pattern("kv_pool"), max_error=10)
        nodes.KSampler().sample(
            model, 7, 1, 1.0, "euler", "normal", positive, positive, {"samples": family.latent(96, 96)}
        )
        assert ran()["local"] == 0
        assert any("tokens of other pictures" in why for why in reasons())


class TestNode:
    def test_the_choice_of_a_pattern_brings_its_parameters(self) -> None:
        family = FAMILIES["sd15"]
        settings = {"max_error": 10.0, "blocks": "all", "start_percent": 0.0, "end_percent": 1.0, "min_tokens": 0}
        pattern = {"pattern": "window", "radius": 3, "block": 4, "frames": 0}
        model = HeadroomLocalAttention.execute(family.load(), pattern, **settings).result[0]
        sample(model, family, steps=1)
        assert any("window" in line and "3" in line for line in last_row().lines)

    def test_short_calls_stay_dense(self) -> None:
        family = FAMILIES["sd15"]
        sample(apply_local_attention(family.load(), make_pattern("kv_pool"), min_tokens=257), family, steps=1)
        assert ran()["local"] == 0

    @pytest.mark.parametrize(
        ("name", "parameters", "settings", "sentence"),
        [
            ("warp", {}, {}, "pattern: 'warp' is unknown; choose one of window"),
            ("window", {"block": 0}, {}, "block"),
            ("window", {}, {"max_error": -1.0}, "max_error"),
            ("window", {}, {"blocks": "nowhere"}, "blocks: cannot read"),
            ("window", {}, {"start_percent": 0.9, "end_percent": 0.1}, "start_percent"),
        ],
    )
    def test_bad_settings(self, name: str, parameters: dict, settings: dict, sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            apply_local_attention(FAMILIES["flux"].load(), make_pattern(name, **parameters), **settings)


class TestRecordingHosts:
    """Hosts newer than those tested record allocations; what they ask is kept in one place and tried with a stub."""

    @pytest.fixture
    def pauses(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        seen: list[str] = []

        @contextmanager
        def pause() -> Iterator[None]:
            seen.append("paused")
            yield
            seen.append("resumed")

        monkeypatch.setattr(compat, "_recording_pause", lambda: pause)
        return seen

    def test_errors_are_kept_outside_the_recording(self, pauses: list[str]) -> None:
        family = FAMILIES["flux"]
        sample(apply_local_attention(family.load(), make_pattern("kv_pool"), max_error=10), family, steps=1, cfg=1.0)
        assert pauses == ["paused", "resumed"] * 6, "once for each of the six blocks"

    def test_a_step_range_is_declined_and_said(self, pauses: list[str]) -> None:
        family = FAMILIES["flux"]
        stock = sample(family.load(), family)
        for apply in (
            lambda model, **steps: apply_attention(model, backend="online", **steps),
            lambda model, **steps: apply_local_attention(model, make_pattern("kv_pool"), **steps),
        ):
            assert torch.equal(sample(apply(family.load(), end_percent=0.5), family), stock)
            assert any("replay" in notice for notice in last_row().notices)
        sample(apply_attention(family.load(), backend="online"), family)
        assert not last_row().notices
