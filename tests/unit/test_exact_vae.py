"""The exact engine on modules of plain torch: strips of rows give what the module gives in one piece."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from headroom.benchmarks._harness import peak_bytes
from headroom.memory.on_disk import on_disk
from headroom.vae.exact import CannotRecord, DoesNotFit, ExactRun, PlannedRun, Schedule, StoreOverflow
from headroom.vae.exact.planning import search
from headroom.vae.exact.planning.choice import Choice
from headroom.vae.exact.planning.device import CPU
from headroom.vae.exact.planning.planner import Planner
from headroom.vae.exact.planning.search import Search
from headroom.vae.exact.running.arena import LEAST, Arena
from headroom.vae.exact.running.kernels import Kernels
from headroom.vae.exact.running.moments import Moments
from headroom.vae.exact.running.pages import Pages

HEIGHTS = [1, 2, 3, 5, 999]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def seeded(make: Callable[[], nn.Module], seed: int = 1) -> nn.Module:
    """A module with the same weights every time, its norms not the identity."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = make().eval()
        for name, weight in module.named_parameters():
            if weight.ndim == 1:
                weight.data.copy_(("weight" in name) + 0.2 * torch.randn(weight.shape))
    return module


def psnr(result: Tensor, reference: Tensor) -> float:
    error = (result.double() - reference.double()).square().mean().item()
    span = (reference.max() - reference.min()).item()
    return math.inf if error == 0 else 10 * math.log10(span**2 / error)


def error_of(result: Tensor, truth: Tensor) -> float:
    """The largest deviation, in parts of the truth's range."""
    return float((result.double() - truth).abs().max() / (truth.max() - truth.min()))


class Residual(nn.Module):
    """Two normalised convolutions, and a shortcut that changes the width if need be."""

    def __init__(self, channels: int, out: int, dims: int = 2) -> None:
        super().__init__()
        convolution: Any = nn.Conv2d if dims == 2 else nn.Conv3d
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, out)
        self.conv1, self.conv2 = convolution(channels, out, 3, padding=1), convolution(out, out, 3, padding=1)
        self.shortcut = convolution(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(functional.silu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(functional.silu(self.norm2(h)))


class Attention(nn.Module):
    """Over all pixels, as in the middle of an autoencoder."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.q, self.k, self.v, self.out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        batch, channels, height, width = h.shape
        q, k, v = (
            one(h).reshape(batch, 1, channels, height * width).transpose(2, 3) for one in (self.q, self.k, self.v)
        )
        out = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(out.transpose(2, 3).reshape(batch, channels, height, width))


class Up(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))


class Down(nn.Module):
    """Padded on one side only, as Stable Diffusion's encoder is."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.pad(x, (0, 1, 0, 1)))


def decoder(width: int = 8, levels: int = 2) -> nn.Sequential:
    ups = [part for _ in range(levels) for part in (Residual(2 * width, 2 * width), Up(2 * width))]
    return nn.Sequential(
        nn.Conv2d(4, 2 * width, 3, padding=1),
        Residual(2 * width, 2 * width),
        Attention(2 * width),
        *ups,
        Residual(2 * width, width),
        nn.GroupNorm(4, width),
        nn.SiLU(),
        nn.Conv2d(width, 3, 3, padding=1),
    )


def encoder() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        Residual(8, 8),
        Down(8),
        Residual(8, 16),
        Down(16),
        Attention(16),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Conv2d(16, 8, 3, padding=1),
    )


class TestAgainstFloat64:
    @pytest.mark.parametrize("rows", HEIGHTS)
    @pytest.mark.parametrize(
        ("make", "shape"),
        [(decoder, (2, 4, 7, 5)), (decoder, (1, 4, 6, 9)), (encoder, (2, 3, 37, 17)), (encoder, (1, 3, 42, 31))],
    )
    def test_no_further_off_than_the_module_itself(
        self, make: Callable[[], nn.Module], shape: tuple[int, ...], rows: int
    ) -> None:
        module, x = seeded(make), noise(*shape)
        truth = seeded(make).double()(x.double())
        run = ExactRun(rows=rows)
        result = run.run(module, x)
        assert result.shape == truth.shape
        assert error_of(result, truth) <= max(2 * error_of(module(x), truth), 1e-6)
        assert run.report.materialised == []
        passes = sum(len(schedule.passes) for schedule in run.report.schedules)
        assert run.report.strips == passes if rows == 999 else run.report.strips > passes

    def test_in_float64_itself(self) -> None:
        module, x = seeded(decoder).double(), noise(1, 4, 6, 5, dtype=torch.float64)
        assert error_of(ExactRun(rows=3).run(module, x), module(x)) < 1e-13

    def test_three_dimensions(self) -> None:
        module = seeded(lambda: nn.Sequential(Residual(8, 8, dims=3), nn.Conv3d(8, 4, 3, padding=1)))
        x = noise(1, 8, 3, 11, 7)
        truth = seeded(lambda: nn.Sequential(Residual(8, 8, dims=3), nn.Conv3d(8, 4, 3, padding=1))).double()(
            x.double()
        )
        for rows in (1, 4):
            result = ExactRun(rows=rows).run(module, x)
            assert error_of(result, truth) <= max(2 * error_of(module(x), truth), 1e-6)

    def test_bfloat16_is_no_worse_than_the_module(self) -> None:
        module, x = seeded(decoder), noise(1, 4, 8, 8)
        truth = module(x).double()
        half, y = seeded(decoder).bfloat16(), x.bfloat16()
        result, stock = ExactRun(rows=4).run(half, y), half(y)
        assert result.dtype is torch.bfloat16
        assert (result - truth).square().mean().sqrt() <= 1.5 * (stock - truth).square().mean().sqrt()


# ---------------------------------------------------------------- one function at a time

WEIGHT = {
    "square": noise(6, 8, 3, 3, seed=11) / 8,
    "wide": noise(6, 8, 5, 3, seed=12) / 10,
    "grouped": noise(8, 2, 3, 3, seed=13) / 4,
    "point": noise(6, 8, 1, 1, seed=14) / 3,
    "patch": noise(6, 8, 2, 2, seed=15) / 5,
    "cube": noise(6, 8, 3, 3, 3, seed=16) / 14,
    "frames": noise(6, 8, 3, 1, 1, seed=17) / 5,
}
BIAS, EIGHT = noise(6, seed=18), noise(8, seed=19)
PICTURE, VIDEO = (2, 8, 12, 10), (1, 8, 3, 12, 6)


def a_view_written_to(x: Tensor) -> Tensor:
    y = x * 1.5
    first, second = y.split(4, 1)
    first.add_(second)
    return y


def a_part_set(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 2:5] = x[:, :3] * 2
    y[:, -1] = 0.25
    y[..., 1:3] += 1
    return y


def a_copied_view(x: Tensor) -> Tensor:
    y = x.clone()
    y.narrow(1, 0, 2).copy_(x.narrow(1, 6, 2))
    y.select(1, 5).mul_(3)
    return y


def a_clone_of_its_own(x: Tensor) -> Tensor:
    """A write to one does not reach the other."""
    y = x + 1
    z = y.clone()
    y.mul_(2)
    return y - z


def a_view_seen_later(x: Tensor) -> Tensor:
    """A view taken before the write sees it."""
    y = x * 2
    half = y[:, :4]
    y.add_(1)
    return half * 3


def a_reshape_written_through(x: Tensor) -> Tensor:
    y = x * 1
    y.view(y.shape[0], 2, 4, *y.shape[2:])[:, 1].mul_(2)
    return y


def depth_to_space(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    parts = x.view(batch, channels // 4, 2, 2, height, width)
    return parts.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels // 4, height * 2, width * 2)


def space_to_depth(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    parts = x.view(batch, channels, height // 2, 2, width // 2, 2)
    return parts.permute(0, 1, 3, 5, 2, 4).reshape(batch, channels * 4, height // 2, width // 2)


def patches_and_back(x: Tensor) -> Tensor:
    return space_to_depth(depth_to_space(x)) + x


def padded_with_zeros(x: Tensor) -> Tensor:
    return torch.cat((torch.zeros_like(x), x, x.new_zeros(x.shape) + x, torch.full_like(x, 0.5)), 1)


SAME: dict[str, Callable[[Tensor], Tensor]] = {
    "arithmetic": lambda x: (2 * x - 1) / (x.abs() + 3) + x**2 - (-x) * x + 1.0 / (x.square() + 1),
    "comparisons": lambda x: torch.maximum(x, -x).clamp(0.1, 0.9) + torch.minimum(x, x * 2),
    "relu": lambda x: functional.relu(x) + functional.leaky_relu(x, 0.2) + functional.hardtanh(x),
    "with_channel_constants": lambda x: x * EIGHT.view(1, -1, 1, 1) + EIGHT[:, None, None],
    "with_a_map_of_its_own": lambda x: x * noise(*x.shape[-2:], seed=4) + noise(*x.shape, seed=5),
    "lerp": lambda x: torch.lerp(x, x * x, 0.25),
    "rounding": lambda x: x.floor() + x.ceil() + x.round() + x.sign(),
    "cast": lambda x: x.to(torch.float64).mul(1 / 3).float() + x.half().float() + x.type_as(x),
    "cat": lambda x: torch.cat((x, x * 2, x[:, :3]), 1),
    "cat_beside_rows": lambda x: torch.cat((x, x[..., :2]), -1),
    "chunk": lambda x: (lambda a, b: a * b)(*x.chunk(2, 1)),
    "split": lambda x: (lambda a, b, c: torch.cat((c, a, b), dim=1))(*x.split([2, 3, 3], dim=1)),
    "unbind": lambda x: x.unbind(1)[3].unsqueeze(1) + x,
    "stack": lambda x: torch.stack((x, x + 1), 2).flatten(1, 2),
    "permute": lambda x: x.permute(0, 2, 3, 1).mul(2).movedim(-1, 1).transpose(-1, -2).transpose(2, 3).contiguous(),
    "tokens": lambda x: x.flatten(2).transpose(1, 2).add(1).transpose(1, 2).unflatten(2, x.shape[2:]),
    "depth_to_space": depth_to_space,
    "space_to_depth": space_to_depth,
    "depth_to_space_and_back": patches_and_back,
    "depth_to_space_and_conv_like": lambda x: functional.pad(depth_to_space(x), (1, 1, 1, 1)),
    "pixel_shuffle": lambda x: functional.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: functional.pixel_unshuffle(x, 2),
    "repeat": lambda x: x.repeat(1, 2, 1, 1) + x.repeat_interleave(2, dim=1),
    "expand": lambda x: x[:, :1].expand(-1, 8, -1, -1) + x,
    "narrow": lambda x: x.narrow(1, 2, 4) + x.narrow(1, -4, 4),
    "narrow_rows": lambda x: x.narrow(2, 1, 7) * 2,
    "select": lambda x: x.select(1, 2).unsqueeze(1) + x[:, -3:-2],
    "getitem": lambda x: x[:, 1:-2, ..., 2:-1],
    "getitem_rows": lambda x: x[:, :, 2:-3] + x[..., 1:-4, :],
    "getitem_none": lambda x: x[:, None, 2:4][:, 0] + x[:, :2],
    "getitem_ellipsis": lambda x: x[..., None][..., 0] + x[0][None],
    "getitem_negative": lambda x: x[:, -1:] + x[-1:, ..., -1:],
    "getitem_step": lambda x: x[:, ::2] + x[:, 1::2],
    "pad_constant": lambda x: functional.pad(x, (1, 2, 3, 1), value=0.5),
    "pad_zero_rows": lambda x: functional.pad(x, (0, 0, 2, 1)),
    "pad_columns": lambda x: functional.pad(x, (2, 1)),
    "pad_replicate": lambda x: functional.pad(x, (2, 1, 3, 2), mode="replicate"),
    "pad_reflect": lambda x: functional.pad(x, (2, 1, 3, 2), mode="reflect"),
    "avg_pool": lambda x: functional.avg_pool2d(x, 2),
    "max_pool": lambda x: functional.max_pool2d(x, kernel_size=(3, 2)),
    "interpolate_scale": lambda x: functional.interpolate(x, scale_factor=2, mode="nearest"),
    "interpolate_scales": lambda x: functional.interpolate(x, scale_factor=(3.0, 2.0), mode="nearest-exact"),
    "interpolate_size": lambda x: functional.interpolate(x, size=(24, 20)),
    "silu_in_place": lambda x: functional.relu_(x * 2) + functional.silu(x + 1, inplace=True).mul_(0.5),
    "add_on_a_view": a_view_written_to,
    "setitem": a_part_set,
    "copy_into_a_view": a_copied_view,
    "clone": a_clone_of_its_own,
    "a_view_before_the_write": a_view_seen_later,
    "a_reshape_written_through": a_reshape_written_through,
    "operators_in_place": lambda x: (lambda y: [y.__iadd__(x), y.__imul__(2), y][-1])(x - 1),
    "zeros_like": padded_with_zeros,
    "dropout": lambda x: functional.dropout(x, 0.5, training=False) + functional.dropout(x, 0.0),
    "detached": lambda x: x.detach().data + x,
    "matrix_transposed": lambda x: x.mT.mul(2).mT,
}

NEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "activations": lambda x: functional.silu(x) + functional.gelu(x) + torch.tanh(x) * torch.sigmoid(x) + x.exp(),
    "more_activations": lambda x: functional.mish(x) + functional.softplus(x) + functional.elu(x) + x.sin() * x.cos(),
    "conv": lambda x: functional.conv2d(x, WEIGHT["square"], BIAS, padding=1),
    "conv_without_padding": lambda x: functional.conv2d(x, WEIGHT["square"]),
    "conv_more_padding": lambda x: functional.conv2d(x, WEIGHT["square"], BIAS, 1, 3),
    "conv_stride": lambda x: functional.conv2d(x, WEIGHT["square"], BIAS, stride=2, padding=1),
    "conv_stride_3": lambda x: functional.conv2d(x, WEIGHT["wide"], BIAS, stride=(3, 1), padding=(2, 1)),
    "conv_patch": lambda x: functional.conv2d(x, WEIGHT["patch"], BIAS, stride=2),
    "conv_stride_over_rows": lambda x: functional.conv2d(x, WEIGHT["point"], BIAS, stride=2),
    "conv_dilation": lambda x: functional.conv2d(x, WEIGHT["square"], BIAS, padding=2, dilation=2),
    "conv_groups": lambda x: functional.conv2d(x, WEIGHT["grouped"], EIGHT, padding=1, groups=4),
    "conv_point": lambda x: functional.conv2d(x, WEIGHT["point"], BIAS),
    "conv_of_upsampled": lambda x: functional.conv2d(
        functional.interpolate(x, scale_factor=2.0), WEIGHT["square"], BIAS, padding=1
    ),
    "conv_of_replicated": lambda x: functional.conv2d(functional.pad(x, (1, 1, 1, 1), "replicate"), WEIGHT["square"]),
    "conv_of_a_reflected_map": lambda x: functional.conv2d(
        functional.pad(functional.conv2d(x, WEIGHT["grouped"], EIGHT, padding=1, groups=4), (1, 1, 1, 1), "reflect"),
        WEIGHT["square"],
    ),
    "conv_of_a_map_reflected_further": lambda x: functional.conv2d(
        functional.pad(functional.conv2d(x, WEIGHT["grouped"], EIGHT, padding=1, groups=4), (2, 2, 5, 6), "reflect"),
        WEIGHT["square"],
    ),
    "group_norm": lambda x: functional.group_norm(x, 4, EIGHT, -EIGHT, 1e-3),
    "group_norm_bare": lambda x: functional.group_norm(x + 5, 2) + functional.group_norm(x, 8),
    "batch_norm": lambda x: functional.batch_norm(x, EIGHT, EIGHT.abs() + 0.5, EIGHT, -EIGHT),
    "layer_norm": lambda x: functional.layer_norm(x.movedim(1, -1), (8,), EIGHT, EIGHT).movedim(-1, 1),
    "normalize": lambda x: functional.normalize(x, dim=1) * 8**0.5,
    "pixel_norm": lambda x: x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-6),
    "sums_over_channels": lambda x: x.sum(1, keepdim=True) + x.var(dim=1, keepdim=True) + x.norm(dim=1, keepdim=True),
    "softmax_over_channels": lambda x: x.softmax(1) + x.amax(1, keepdim=True),
    "linear": lambda x: functional.linear(x.movedim(1, -1), WEIGHT["point"].flatten(1), BIAS).movedim(-1, 1),
    "attention_over_rows": lambda x: (
        functional.scaled_dot_product_attention(*(x.flatten(2).transpose(1, 2)[:, None],) * 3)
        .squeeze(1)
        .transpose(1, 2)
        .reshape(x.shape)
    ),
    "attention_in_rows": lambda x: functional.scaled_dot_product_attention(*(x.permute(0, 2, 3, 1),) * 3),
}

NEAR_IN_TIME: dict[str, Callable[[Tensor], Tensor]] = {
    "conv": lambda x: functional.conv3d(x, WEIGHT["cube"], BIAS, padding=1),
    "conv_strides": lambda x: functional.conv3d(x, WEIGHT["cube"], BIAS, stride=(1, 2, 2), padding=(1, 1, 1)),
    "conv_causal": lambda x: functional.conv3d(functional.pad(x, (1, 1, 1, 1, 2, 0)), WEIGHT["cube"], BIAS),
    "conv_in_time": lambda x: functional.conv3d(x, WEIGHT["frames"], BIAS, stride=(2, 1, 1)),
    "conv_dilation": lambda x: functional.conv3d(x, WEIGHT["cube"], BIAS, padding=(1, 2, 2), dilation=(1, 2, 2)),
    "first_frame_repeated": lambda x: functional.conv3d(
        torch.cat((x[:, :, :1].repeat(1, 1, 2, 1, 1), x), 2), WEIGHT["cube"], BIAS, padding=(0, 1, 1)
    ),
    "replicate": lambda x: functional.pad(x, (1, 1, 1, 1, 2, 0), mode="replicate"),
    "avg_pool": lambda x: functional.avg_pool3d(x, (1, 2, 2)),
    "max_pool": lambda x: functional.max_pool3d(x, (1, 2, 2)),
    "interpolate": lambda x: functional.interpolate(x, scale_factor=(1, 2, 2), mode="nearest"),
    "group_norm": lambda x: functional.group_norm(x, 4, EIGHT, EIGHT),
    "frames_as_pictures": lambda x: (
        functional.conv2d(x.transpose(1, 2).flatten(0, 1), WEIGHT["square"], BIAS, 1, 1)
        .unflatten(0, (1, -1))
        .transpose(1, 2)
    ),
}


def compared(function: Callable[[Tensor], Tensor], x: Tensor, rows: int, near: bool) -> None:
    before = x.clone()
    expected = function(x.clone())
    run = ExactRun(rows=rows)
    result = run.run(function, x)
    assert run.report.materialised == []
    assert run.report.schedules, "nothing was recorded"
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    if near:
        assert error_of(result, expected.double()) < 2e-6
    else:
        assert torch.equal(result, expected)
    assert torch.equal(x, before)


class TestFunctions:
    """Each family that is recorded, for itself."""

    @pytest.mark.parametrize("rows", [1, 5])
    @pytest.mark.parametrize("name", SAME)
    def test_bit_for_bit(self, name: str, rows: int) -> None:
        compared(SAME[name], noise(*PICTURE), rows, near=False)

    @pytest.mark.parametrize("rows", [1, 5])
    @pytest.mark.parametrize("name", NEAR)
    def test_up_to_rounding(self, name: str, rows: int) -> None:
        compared(NEAR[name], noise(*PICTURE), rows, near=True)

    @pytest.mark.parametrize("rows", [1, 5])
    @pytest.mark.parametrize("name", NEAR_IN_TIME)
    def test_of_videos(self, name: str, rows: int) -> None:
        compared(NEAR_IN_TIME[name], noise(*VIDEO), rows, near=True)

    @pytest.mark.parametrize("rows", [1, 2, 5])
    def test_windows_over_rows_that_do_not_divide(self, rows: int) -> None:
        """The last rows of an odd map fall to no window."""
        x = noise(1, 8, 13, 9)
        for name in ("conv_stride", "conv_stride_3", "conv_patch", "conv_stride_over_rows"):
            compared(NEAR[name], x, rows, near=True)


class Buffered(nn.Module):
    """Keeps what it was given in a buffer of its own, and reads it later."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor, buffer: Tensor) -> Tensor:
        buffer.copy_(x * self.factor)
        return buffer + 1


class TestMaterialised:
    """Functions that are not known get a whole map, by name; the rest still runs in strips."""

    X = (1, 8, 96, 96)

    @pytest.mark.parametrize(
        ("name", "function"),
        [
            ("cumsum", lambda x: x.cumsum(2)),
            ("flip", lambda x: x.flip(2)),
            ("sort", lambda x: x.sort(dim=2).values),
            ("interpolate", lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear")),
            ("batch_norm", lambda x: functional.batch_norm(x, None, None, training=True)),
        ],
    )
    def test_and_recorded_on(self, name: str, function: Callable[[Tensor], Tensor]) -> None:
        def module(x: Tensor) -> Tensor:
            x = functional.conv2d(x, WEIGHT["grouped"], EIGHT, padding=1, groups=4)
            return functional.conv2d(function(x), WEIGHT["square"], BIAS, padding=1)

        x = noise(*self.X)
        run = ExactRun(rows=16)
        assert error_of(run.run(module, x), module(x).double()) < 2e-6
        assert name in run.report.materialised
        assert len(run.report.schedules) == 2

    def test_a_result_that_is_no_map(self) -> None:
        """Complex numbers are not recorded on: what follows them runs plainly."""
        run, x = ExactRun(rows=16), noise(*self.X)

        def module(x: Tensor) -> Tensor:
            return torch.fft.fft(x * 2, dim=2).real + 1

        assert torch.equal(run.run(module, x), module(x))
        assert run.report.materialised == ["fft_fft"]

    def test_along_the_rows(self) -> None:
        """What is summed over rows is no function of a row."""
        run, x = ExactRun(rows=4), noise(*PICTURE)
        assert torch.allclose(run.run(lambda x: x - x.mean((2, 3), keepdim=True), x), x - x.mean((2, 3), keepdim=True))
        assert run.report.materialised == ["mean"]

    def test_a_plain_buffer_is_written_and_read(self) -> None:
        x, ours, plain = noise(*PICTURE), torch.zeros(PICTURE), torch.zeros(PICTURE)
        run = ExactRun(rows=3)
        result = run.run(Buffered(2.0), x, ours)
        assert torch.equal(result, Buffered(2.0)(x, plain))
        assert torch.equal(ours, plain)
        assert run.report.strips > 1

    @pytest.mark.parametrize("along", ["rows", "frames"])
    def test_a_buffer_is_copied_from_and_written_over(self, along: str) -> None:
        """In the order of the module, though maps are written late."""
        x = noise(1, 4, 5, 6, 7)

        def module(x: Tensor) -> Tensor:
            first, second = torch.empty(2, *x.shape)
            first.copy_(x * 2)
            second.copy_(first)  # reads what is written late
            first.copy_(torch.ones(x.shape))  # comes after it
            return second * first

        assert torch.equal(ExactRun(rows=2, along=along).run(module, x), x * 2)

    def test_parts_of_a_buffer_are_written_at_the_end(self) -> None:
        x = noise(*PICTURE)

        def module(x: Tensor, buffer: Tensor) -> Tensor:
            for channel in range(0, 8, 4):
                buffer[:, channel : channel + 4].copy_(x[:, channel : channel + 4] * 2)
            return buffer

        buffer = torch.zeros(PICTURE)
        result = ExactRun(rows=3).run(module, x, buffer)
        assert result is buffer
        assert torch.equal(buffer, x * 2)

    @pytest.mark.parametrize(
        ("module", "message"),
        [
            (lambda x: x.add(1).cumsum_(2), "'cumsum' overwrites a map in a way that is not known"),
            (lambda x: (x, x), "returns a tuple"),
        ],
    )
    def test_what_cannot_be_followed_is_said(self, module: Callable[[Tensor], Any], message: str) -> None:
        with pytest.raises(CannotRecord, match=message):
            ExactRun(rows=4).run(module, noise(*PICTURE))

    def test_some_rows_written(self) -> None:
        """Right, or said: never wrong."""

        def module(x: Tensor) -> Tensor:
            y = x * 2
            y[:, :, 3:5] = 0.0
            return y

        x = noise(*PICTURE)
        try:
            result = ExactRun(rows=4).run(module, x)
        except CannotRecord:
            return
        assert torch.equal(result, module(x))


# ---------------------------------------------------------------- random modules


class Concatenated(nn.Module):
    """Two branches side by side, and the input they share."""

    def __init__(self, first: nn.Module, second: nn.Module, mix: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.mix = first, second, mix

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.cat((self.first(x), x, self.second(x)), 1))


class Gated(nn.Module):
    def __init__(self, wide: nn.Module) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        values, gate = self.wide(x).chunk(2, 1)
        return x + values * gate.sigmoid()


class PixelNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=1) * x.shape[1] ** 0.5


class Shuffled(nn.Module):
    """Depth to space by view and permute, narrower after it, and back up."""

    def __init__(self, wide: nn.Module) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        return depth_to_space(self.wide(x)) + functional.interpolate(x, scale_factor=2.0, mode="nearest")


class Halved(nn.Module):
    def __init__(self, wide: nn.Module) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % 2 or x.shape[3] % 2:
            x = functional.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2), mode="replicate")
        return self.wide(space_to_depth(x)) + functional.avg_pool2d(x, 2)


class Written(nn.Module):
    """Writes its result into part of what it was given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, :4].add_(self.inner(x)[:, 4:])
        return functional.silu(y, inplace=True)


def random_module(seed: int) -> nn.Module:
    """A chain of parts over 8 channels, some of them made of parts."""
    rng = random.Random(seed)

    def part(depth: int) -> nn.Module:
        plain: list[Callable[[], nn.Module]] = [
            lambda: nn.Conv2d(8, 8, 3, padding=1),
            lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode=rng.choice(["reflect", "replicate", "zeros"])),
            lambda: nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4),
            lambda: nn.Sequential(nn.GroupNorm(rng.choice([1, 2, 8]), 8), nn.SiLU()),
            lambda: Residual(8, 8),
            lambda: Attention(8),
            PixelNorm,
            lambda: Gated(nn.Conv2d(8, 16, 3, padding=1)),
            lambda: Gated(nn.Conv2d(8, 16, 1)),
        ]
        nested: list[Callable[[], nn.Module]] = [
            lambda: Concatenated(part(depth + 1), part(depth + 1), nn.Conv2d(24, 8, 1)),
            lambda: Written(part(depth + 1)),
            lambda: nn.Sequential(part(depth + 1), part(depth + 1)),
        ]
        return rng.choice(plain + (nested if depth < 2 else []))()

    resized: list[Callable[[], nn.Module]] = [
        lambda: Up(8),
        lambda: Down(8),
        lambda: Shuffled(nn.Conv2d(8, 32, 3, padding=1)),
        lambda: Halved(nn.Conv2d(32, 8, 1)),
    ]
    parts = []
    for _ in range(rng.randint(3, 5)):
        parts.append(part(0))
        if rng.random() < 0.5:
            parts.append(rng.choice(resized)())
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), *parts, part(0), nn.Conv2d(8, 3, 3, padding=1))


@pytest.mark.parametrize("seed", range(20))
def test_random_modules(seed: int) -> None:
    rng = random.Random(1000 + seed)
    module = seeded(lambda: random_module(seed), seed)
    x = noise(rng.choice([1, 2]), 4, rng.randint(9, 20), rng.randint(9, 16), seed=seed)
    expected = module(x)
    truth = seeded(lambda: random_module(seed), seed).double()(x.double())
    for rows in (1, rng.randint(2, 4), rng.randint(5, 9)):
        run = ExactRun(rows=rows)
        assert error_of(run.run(module, x), truth) <= max(2 * error_of(expected, truth), 2e-6)
        assert run.report.materialised == []
    with pytest.raises(DoesNotFit):
        ExactRun(budget=1).run(module, x)


# ---------------------------------------------------------------- memory


class Wide(nn.Module):
    """A decoder whose maps are far larger than a strip, 64 to 24 channels wide."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.Conv2d(4, 64, 3, padding=1),
            Attention(64),
            Residual(64, 64),
            Up(64),
            Residual(64, 48),
            Up(48),
            Residual(48, 24),
            Up(24),
            Residual(24, 24),
            nn.GroupNorm(4, 24),
            nn.SiLU(),
            nn.Conv2d(24, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


LATENT = (1, 4, 44, 40)


@cache
def wide() -> tuple[nn.Module, Tensor, Tensor]:
    """The module, its input, its plain result."""
    module, x = seeded(Wide), noise(*LATENT)
    with torch.no_grad():
        return module, x, module(x)


@cache
def least_bytes() -> int:
    module, x, _ = wide()
    with torch.no_grad(), pytest.raises(DoesNotFit) as failure:
        ExactRun(budget=1).run(module, x)
    return failure.value.least


@cache
def default_run() -> tuple[ExactRun, int]:
    return run_and_peak(math.inf)


def run_and_peak(budget: float, **options: Any) -> tuple[ExactRun, int]:
    """A run that gave the right result, and the peak of torch's allocator while it ran."""
    module, x, expected = wide()
    runs: list[tuple[ExactRun, Tensor]] = []

    def work() -> None:
        run = ExactRun(budget, **options)
        runs.append((run, run.run(module, x)))

    with torch.no_grad():
        peak = peak_bytes(work)
    run, result = runs[0]
    assert psnr(result, expected) >= (60 if options.get("store") else 110)
    return run, peak


class TestMemory:
    @pytest.mark.parametrize("share", [0.0, 0.15, 0.4, 0.7, 1.0])
    def test_the_peak_keeps_to_the_budget(self, share: float) -> None:
        least, default = least_bytes(), default_run()[0].report.peak
        budget = least + share * (default - least)
        run, peak = run_and_peak(budget)
        assert run.report.peak <= budget
        assert peak <= budget

    def test_what_the_caller_holds_beside_counts(self) -> None:
        """Copies of the input, a buffer for the output."""
        module, x, _ = wide()
        run = ExactRun(least_bytes() + (5 << 18) - 1)
        run.beside = [1 << 20, 1 << 18]
        with pytest.raises(DoesNotFit) as failure:
            run.run(module, x)
        assert failure.value.least == least_bytes() + (5 << 18)

    def test_less_memory_costs_strips_and_then_work(self) -> None:
        module, x, _ = wide()
        plain = peak_bytes(lambda: module(x))
        by_default, peak = default_run()
        tight, least_peak = run_and_peak(least_bytes())
        assert least_peak < peak < plain
        assert least_peak < 0.5 * plain
        assert tight.report.schedules[0].choice.recomputed
        assert not by_default.report.schedules[0].choice.recomputed
        assert tight.report.schedules[0].flops > by_default.report.schedules[0].flops

    def test_what_does_not_fit_is_said_before_any_work(self) -> None:
        module, x, _ = wide()
        strips: list[float] = []
        run = ExactRun(least_bytes() - 1, on_strip=lambda share, out: strips.append(share))
        with pytest.raises(DoesNotFit) as failure:
            run.run(module, x)
        assert failure.value.least == least_bytes()
        assert not strips

    def test_maps_in_a_file_instead_of_recomputed(self, tmp_path: Path) -> None:
        module, x, expected = wide()
        sizes, files = list[int](), list[Any]()

        def hold(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
            made = on_disk(tmp_path, shape, dtype)
            sizes.append(made.nbytes)
            files.append(weakref.ref(made.untyped_storage()))
            return made

        run = ExactRun(budget := 1.5 * least_bytes())
        run.far = hold
        gc.disable()
        try:
            assert psnr(run.run(module, x), expected) >= 110
            assert not any(file() for file in files), "without the garbage collector"
        finally:
            gc.enable()
        (schedule,) = run.report.schedules
        assert schedule.choice.outside
        assert run.report.in_file
        assert not schedule.choice.recomputed
        assert schedule.peak <= budget
        assert run_and_peak(budget)[0].report.schedules[0].choice.recomputed
        assert sum(sizes) >= schedule.host_peak > 0

    def test_a_narrower_store_is_smaller_and_near(self) -> None:
        run, peak = run_and_peak(math.inf, store=torch.float16)
        assert run.report.peak < default_run()[0].report.peak
        assert peak < default_run()[1]

    def test_a_value_that_the_narrower_store_cannot_hold(self) -> None:
        module = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 3, 1))
        x = noise(1, 8, 32, 32)
        assert psnr(ExactRun(store=torch.float16, rows=8).run(module, x), module(x)) > 60
        with pytest.raises(StoreOverflow, match="float16"):
            ExactRun(store=torch.float16, rows=8).run(module, 1e6 * x)
        assert psnr(ExactRun(rows=8).run(module, 1e6 * x), module(1e6 * x)) > 100

    def test_pages_that_no_map_needs_are_not_held(self) -> None:
        """Else a later pass had less than the planner counts on. Page-locked ones are kept, being slow to get."""
        for outside, kept in ((False, 1), (True, 4)):
            pages = Pages(4096, Kernels(torch.device("cpu")), outside)
            for page in [pages.take(4096) for _ in range(4)]:
                pages.give(page)
            assert len(pages.free) == kept

    def test_maps_in_host_memory_do_not_count(self) -> None:
        run, peak = run_and_peak(math.inf, offload=True)
        assert run.report.host_peak > 0
        assert peak <= run.report.peak
        assert peak < 0.7 * default_run()[1]


# ---------------------------------------------------------------- statistics


class Alike(nn.Module):
    """Maps that are computed and read alike, as those of a video's frames are, and a wide one that is not."""

    def __init__(self, maps: int = 16) -> None:
        super().__init__()
        self.first, self.wide = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 24, 3, padding=1)
        self.each = nn.ModuleList(nn.Conv2d(8, 16, 3, padding=1) for _ in range(maps))
        self.norm, self.last, self.end = nn.GroupNorm(4, 16), nn.Conv2d(16, 4, 3, padding=1), nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        maps, wide = [convolution(x) for convolution in self.each], self.wide(x)
        out = self.end(functional.group_norm(wide, 4))
        for one in maps:
            out = out + self.last(self.norm(one))
        return out


def test_maps_that_are_alike_are_given_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many operations, as a video has, where each schedule that is tried takes a second: the same plan is found as
    by trying each map after each other, in few tries."""
    module, x = seeded(Alike), noise(1, 4, 64, 64)
    figures = replace(CPU, strip_bytes=1 << 16, page_bytes=1 << 14, least_margin=0)
    tried: list[Choice] = []
    schedule = Planner.schedule
    monkeypatch.setattr(
        Planner, "schedule", lambda planner, choice: (tried.append(choice), schedule(planner, choice))[1]
    )

    def planned(most: int, budget: float) -> tuple[Schedule | None, int, float]:
        """The plan, the tries and the least."""
        monkeypatch.setattr(search, "SMALL", most)
        tried.clear()
        run = PlannedRun(budget, figures=figures)
        try:
            run.run(module, x)
        except DoesNotFit as error:
            return None, len(tried), error.least
        finally:
            run.close()
        return run.report.schedules[0], len(tried), run.report.peak

    top, low = planned(0, math.inf)[2], planned(0, 0.0)[2]
    assert low < 0.6 * top
    for share in (-0.01, 0.02, 0.2, 0.4, 0.7):
        budget = low + share * (top - low)
        (few, tries, least), (many, all_tries, as_little) = planned(0, budget), planned(10_000, budget)
        assert (few is None) == (many is None) == (share < 0), share
        if few is None or many is None:
            assert least <= as_little
            assert tries < all_tries / 4
            continue
        assert few.peak <= budget
        assert few.seconds <= 1.001 * many.seconds, share
        assert len(few.choice.recomputed) <= len(many.choice.recomputed), share


class TestStatistics:
    @pytest.mark.parametrize(("mean", "spread"), [(0.0, 1.0), (1000.0, 1.0), (-3.0, 0.003), (1e4, 10.0)])
    @pytest.mark.parametrize("heights", [(48,), (1,) * 48, (5, 1, 30, 12)])
    def test_merged_over_strips(self, mean: float, spread: float, heights: tuple[int, ...]) -> None:
        x = mean + spread * noise(2, 8, 48, 40)
        moments, start = Moments(4), 0
        for height in heights:
            moments.add(x[:, :, start : start + height])
            start += height
        variance, average = torch.var_mean(x.double().reshape(2, 4, -1), -1, correction=0)
        merged = moments.merge()
        assert torch.allclose(merged[1], average, rtol=1e-6, atol=1e-6 * spread)
        assert torch.allclose(merged[0], variance, rtol=1e-3, atol=0.0)

    def test_of_means_that_differ_from_strip_to_strip(self) -> None:
        x = noise(1, 4, 40, 16) + torch.linspace(-50, 50, 40).reshape(1, 1, 40, 1)
        moments = Moments(2)
        for start in range(0, 40, 4):
            moments.add(x[:, :, start : start + 4])
        variance, average = torch.var_mean(x.double().reshape(1, 2, -1), -1, correction=0)
        merged = moments.merge()
        assert torch.allclose(merged[0], variance, rtol=1e-6)
        assert torch.allclose(merged[1], average, atol=1e-5)

    @pytest.mark.parametrize("value", [0.0, 1.0, -1234.5])
    def test_of_a_constant(self, value: float) -> None:
        """No variance at all: the norm gives its bias."""
        x = torch.full((1, 8, 12, 6), value)
        result = ExactRun(rows=5).run(lambda x: functional.group_norm(x, 4, EIGHT, EIGHT), x)
        bias = EIGHT.view(1, 8, 1, 1).expand_as(x)
        # A float32 product as large as value / sqrt(eps) is what PyTorch subtracts, too.
        assert torch.allclose(result, bias, rtol=0.0, atol=1e-5 + abs(value) * 1e-5**-0.5 * 3 * 2**-23)

    def test_a_norm_of_a_large_mean(self) -> None:
        x = 1000 + noise(1, 8, 24, 10)
        truth = functional.group_norm(x.double(), 4)
        result = ExactRun(rows=3).run(lambda x: functional.group_norm(x, 4), x)
        assert error_of(result, truth) <= max(2 * error_of(functional.group_norm(x, 4), truth), 2e-5)


# ---------------------------------------------------------------- work


class Convolved(TorchDispatchMode):
    """Counts the elements that convolutions really make."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if "convolution" in str(function) and result.device.type != "meta":
            self.elements += result.numel()
        return result


def convolved(work: Callable[[], object]) -> int:
    with Convolved() as counted:
        work()
    return counted.elements


class TestWork:
    @pytest.mark.parametrize("rows", [1, 3, 8])
    def test_no_row_is_convolved_twice(self, rows: int) -> None:
        def make() -> nn.Module:
            return nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), Residual(16, 24), Down(24), Attention(24))

        module, x = seeded(make), noise(1, 8, 30, 14)
        plain = convolved(lambda: module(x))
        assert plain > 0
        assert convolved(lambda: ExactRun(rows=rows).run(module, x)) == plain

    def test_nor_those_of_an_upsampled_map(self) -> None:
        """Four convolutions of the small map, each a column wider than it."""
        module, x = seeded(lambda: Up(16)), noise(1, 16, 12, 10)
        for rows in (2, 5, 24):
            assert convolved(lambda rows=rows: ExactRun(rows=rows).run(module, x)) == 16 * 24 * (2 * 11)

    def test_recomputing_convolves_more(self) -> None:
        """The count tells the difference."""
        module, x, _ = wide()
        assert convolved(lambda: ExactRun(least_bytes()).run(module, x)) > convolved(lambda: ExactRun().run(module, x))


class TestExplained:
    """The text of what was recorded, cut and planned."""

    def test_what_was_planned(self) -> None:
        run, _ = run_and_peak(least_bytes())
        text, (schedule,) = run.explain(), run.report.schedules
        lines = text.splitlines()
        assert f"on cpu, {len(schedule.passes)} passes, {run.report.strips} strips" in lines[0]
        assert "16 Convolve" in lines[1], "each operation counts once, however often it is computed"
        assert "1 Attention" in lines[1]
        assert f"{schedule.peak / 2**20:.2f} MiB at the peak" in text
        assert f"{schedule.seconds:.3g} s, {schedule.launches} kernels" in text
        of_passes = [line for line in lines if line.startswith("pass ")]
        assert len(of_passes) == len(schedule.passes)
        for line, windows in zip(of_passes, schedule.windows):
            assert f"in {windows.count} strips of {windows.rows}," in line
        assert text.count("recomputed instead of stored") == len(schedule.choice.recomputed) > 0
        assert "(1, 24, 352, 320) float32 10.31 MiB, computed in" in text
        assert text.count("  stores ") == sum(len(one.stored) for one in schedule.passes) > 0
        assert text.count("  gives the output") == 1
        assert text.count("  gives statistics of 4 groups") == 10
        assert text.count("  gives the whole of") == 2

    def test_where_maps_are_stored(self) -> None:
        run = ExactRun(offload=True, store=torch.float16)
        run.run(wide()[0], wide()[1])
        assert " MiB, in host memory in float16" in run.explain()
        assert ", on the device" not in run.explain()

    def test_before_anything_was_planned(self) -> None:
        assert ExactRun().explain() == "nothing was planned"

    def test_what_does_not_fit(self) -> None:
        run = ExactRun(1)
        with pytest.raises(DoesNotFit) as failure:
            run.run(wide()[0], wide()[1])
        assert f"{failure.value.least / 2**20:.2f} MiB at the peak, with a budget of 0.00 MiB, which nothing fits" in (
            run.explain()
        )

    @pytest.mark.parametrize(("value", "times"), [("1", 1), ("0", 0), (None, 0)])
    def test_logged_once_for_each_new_plan(
        self, value: str | None, times: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.delenv("HEADROOM_DEBUG", raising=False)
        if value is not None:
            monkeypatch.setenv("HEADROOM_DEBUG", value)
        module, x, plans = seeded(decoder), noise(1, 4, 6, 5), {}
        runs = [ExactRun(rows=3, plans=plans) for _ in range(2)]
        for run in runs:
            run.run(module, x)
        assert caplog.messages == [f"Headroom: {runs[0].explain()}"] * times
        assert runs[1].explain() == runs[0].explain()


class TestRun:
    def test_the_share_rises_from_nothing_to_the_end(self) -> None:
        seen: list[tuple[float, bool]] = []
        run = ExactRun(rows=2, on_strip=lambda share, out: seen.append((share, out is not None)))
        run.run(seeded(decoder), noise(1, 4, 9, 6))
        shares = [share for share, _ in seen]
        assert shares[0] == 0
        assert shares == sorted(shares)
        assert 0.7 < shares[-1] <= 1
        assert len(shares) == run.report.strips
        shown = [with_picture for _, with_picture in seen]
        assert shown == sorted(shown)
        assert shown[-1]

    def test_the_picture_so_far(self) -> None:
        """What earlier strips of the last pass made is there, the rest is zero."""
        module, x = seeded(decoder), noise(1, 4, 9, 6)
        expected, pictures = module(x), []
        ExactRun(rows=6, on_strip=lambda share, out: out is not None and pictures.append(out.clone())).run(module, x)
        assert len(pictures) > 2
        for done, picture in enumerate(pictures):
            assert torch.allclose(picture[:, :, : 6 * done], expected[:, :, : 6 * done], atol=1e-5)
            assert (picture[:, :, 6 * done :] == 0).all()

    @pytest.mark.parametrize("at", [0, 7, 23])
    def test_stopped_at_a_strip(self, at: int) -> None:
        class Stop(Exception):
            pass

        module, x = seeded(decoder), noise(1, 4, 9, 6)
        calls: list[float] = []
        plans: dict = {}

        def stop(share: float, out: Tensor | None) -> None:
            calls.append(share)
            if len(calls) == at + 1:
                raise Stop

        whole = ExactRun(rows=2).run(module, x)
        with pytest.raises(Stop):
            ExactRun(rows=2, on_strip=stop, plans=plans).run(module, x)
        assert len(calls) == at + 1
        assert torch.equal(ExactRun(rows=2, plans=plans).run(module, x), whole)

    def test_plans_are_used_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module, x, _ = wide()
        plans: dict = {}
        budget = (least_bytes() + default_run()[0].report.peak) / 2
        first, again = ExactRun(budget, plans=plans), ExactRun(budget, plans=plans)
        result = first.run(module, x)
        searched: list[float] = []
        search = Search.run
        monkeypatch.setattr(Search, "run", lambda *args, **kwargs: (searched.append(1), search(*args, **kwargs))[1])
        assert torch.equal(again.run(module, x), result)
        assert not searched
        assert again.report.peak == first.report.peak
        other = ExactRun(budget, plans=plans)
        other.run(module, x[:, :, :-4])
        assert searched, "another size is another plan"

    def test_what_does_not_fit_is_not_searched_for_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a long video it takes as long as a plan that fits."""
        module, x, _ = wide()
        plans: dict = {}
        searched: list[float] = []
        run = Search.run
        monkeypatch.setattr(Search, "run", lambda *args, **kwargs: (searched.append(1), run(*args, **kwargs))[1])
        refusals = []
        for _ in range(2):
            with pytest.raises(DoesNotFit) as refused:
                ExactRun(0.5 * least_bytes(), plans=plans).run(module, x)
            refusals.append(refused.value.least)
        assert refusals[0] == refusals[1]
        assert len(searched) == 1
        ExactRun(refusals[0], plans=plans).run(module, x)

    def test_inference_mode(self) -> None:
        module, x = seeded(decoder), noise(1, 4, 6, 6)
        expected = ExactRun(rows=3).run(module, x)
        with torch.inference_mode():
            assert torch.equal(ExactRun(rows=3).run(module, x), expected)
            assert torch.equal(ExactRun(rows=3).run(module, x.clone()), expected)

    def test_nothing_that_was_given_is_changed(self) -> None:
        module, x = seeded(decoder), noise(1, 4, 6, 6)
        weights, before = {name: value.clone() for name, value in module.state_dict().items()}, x.clone()
        ExactRun(rows=3, store=torch.float16).run(module, x)
        assert torch.equal(x, before)
        assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())

    def test_an_input_that_is_a_view(self) -> None:
        module, wide_input = seeded(decoder), noise(1, 4, 8, 20)
        x = wide_input[:, :, 1:7, 3:15]
        assert error_of(ExactRun(rows=3).run(module, x), module(x).double()) < 2e-6
        channels_last = x.contiguous(memory_format=torch.channels_last)
        assert error_of(ExactRun(rows=3).run(module, channels_last), module(x).double()) < 2e-6

    def test_the_output_where_it_is_wanted(self) -> None:
        module, x = seeded(decoder).bfloat16(), noise(1, 4, 6, 6).bfloat16()
        result = ExactRun(rows=3, out_dtype=torch.float32, out_device=torch.device("cpu")).run(module, x)
        assert result.dtype is torch.float32
        assert torch.equal(result.bfloat16(), ExactRun(rows=3).run(module, x))

    def test_an_attention_of_the_callers(self) -> None:
        calls: list[int] = []

        def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
            calls.append(query.shape[-2])
            return functional.scaled_dot_product_attention(query, key, value, scale=scale)

        module, x = seeded(lambda: Attention(8)), noise(1, 8, 10, 6)
        result = ExactRun(rows=4, attend=attend).run(module, x)
        assert error_of(result, module(x).double()) < 2e-6
        assert len(calls) > 1
        assert sum(calls) == 60


def test_pieces_of_an_arena_are_apart() -> None:
    """Cut from one file for what was expected, and from further ones, each aligned for any dtype."""
    files: list[Tensor] = []

    def hold(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        files.append(torch.zeros(tuple(shape), dtype=dtype))
        return files[-1]

    arena = Arena(hold, 2 * LEAST)
    sizes = (1000, 4096, LEAST, 3 * LEAST, 7)
    pieces = [arena.take(size) for size in sizes]
    for number, piece in enumerate(pieces, 1):
        piece.fill_(number)
    assert [file.numel() for file in files] == [2 * LEAST, 3 * LEAST, LEAST]
    for number, (piece, size) in enumerate(zip(pieces, sizes), 1):
        assert piece.shape == (size,)
        assert bool((piece == number).all())
        assert piece.storage_offset() % 64 == 0


class Paged(nn.Module):
    """A layer whose weights are in a page while it runs, and not a moment longer."""

    def __init__(self, layer: nn.Module, run: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer, self.run = layer, run

    def forward(self, x: Tensor) -> Tensor:
        weights = {name: weight.detach().clone() for name, weight in self.layer.named_parameters()}
        out = self.run(x, **weights)
        for page in weights.values():
            page.fill_(math.nan)
        return out


def channels_last(x: Tensor, work: Callable[[Tensor], Tensor]) -> Tensor:
    return work(x.movedim(1, -1)).movedim(-1, 1)


def convolved_then_added(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.conv2d(x, weight, padding=1) + bias.reshape(1, -1, 1, 1)


def added_in_place(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = functional.conv2d(x, weight, padding=1)
    out += bias.reshape(1, -1, 1, 1)
    return out


PAGED: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "convolution": (lambda: nn.Conv2d(8, 8, 3), lambda x, weight, bias: functional.conv2d(x, weight, bias, padding=1)),
    "bias apart": (lambda: nn.Conv2d(8, 8, 3), convolved_then_added),
    "bias apart, in place": (lambda: nn.Conv2d(8, 8, 3), added_in_place),
    "group norm": (lambda: nn.GroupNorm(4, 8), lambda x, **given: functional.group_norm(x, 4, **given)),
    "linear": (
        lambda: nn.Linear(8, 8),
        lambda x, **given: channels_last(x, lambda x: functional.linear(x, **given)),
    ),
    "layer norm": (
        lambda: nn.LayerNorm(8),
        lambda x, **given: channels_last(x, lambda x: functional.layer_norm(x, (8,), **given)),
    ),
    "rows in the batch": (
        lambda: nn.Conv1d(8, 8, 3),
        lambda x, weight, bias: functional.conv1d(
            x.permute(0, 2, 1, 3).reshape(-1, 8, x.shape[-1]), weight, bias, padding=1
        )
        .reshape(x.shape[0], x.shape[2], 8, x.shape[-1])
        .permute(0, 2, 1, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGED)
def test_weights_are_read_before_their_page_goes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the host brings them to a card: it has them in a page, or a buffer, that others get after the layer."""
    monkeypatch.setattr("headroom.vae.exact.recording.record.STAY", frozenset())
    make, call = PAGED[name]
    module = nn.Sequential(Paged(seeded(make), call), nn.SiLU(), Paged(seeded(make, seed=2), call))
    x = noise(1, 8, 24, 10)
    run = ExactRun(rows=5)
    result = run.run(module, x)
    assert not run.report.materialised
    assert error_of(result, module(x)) < 1e-6
    one_layer = sum(weight.nbytes for weight in make().parameters())
    assert run.report.schedules[0].peak > 2 * one_layer, "the copies count"


def test_storages_of_weights_that_stay_are_held() -> None:
    """A tensor that comes where one was that went is another one's."""
    weight = noise(8, 8)
    run = ExactRun(owned=[weight])
    (address,) = run.recorder.owned
    del weight
    others = [noise(8, 8) for _ in range(64)]
    assert all(one.untyped_storage()._cdata != address for one in others)
