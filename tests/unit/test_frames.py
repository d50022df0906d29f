"""Strips along the frames of a video: what a module does over time, against the module itself in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headroom.benchmarks._harness import peak_bytes
from headroom.vae.exact import CannotRecord, ExactRun, UnbrokenRun

from ..nightly import grid

SIZES = (1, 4, 6, 5)  # batch, channels, rows, columns
HEIGHTS = (1, 2, 3, 7)  # frames in a window


class First(nn.Module):
    """A causal convolution that repeats the first frame before the video, by joining."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(inside, outside, 3, padding=(0, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(torch.cat([x[:, :, :1].repeat((1, 1, 2, 1, 1)), x], 2))


class Padded(nn.Module):
    """The same by padding."""

    def __init__(self, inside: int, outside: int, mode: str = "replicate") -> None:
        super().__init__()
        self.conv, self.mode = nn.Conv3d(inside, outside, 3), mode

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.pad(x, (1, 1, 1, 1, 2, 0), mode=self.mode))


class BothEnds(nn.Module):
    """A centred one that repeats the first frame before and the last behind."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(inside, outside, 3, padding=(0, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(torch.cat([x[:, :, :1], x, x[:, :, -1:]], 2))


class FirstAlone(nn.Module):
    """Upsampling of the first frame in space alone, of the others in time too."""

    def forward(self, x: Tensor) -> Tensor:
        first, others = x[:, :, :1], x[:, :, 1:]
        first = functional.interpolate(first.squeeze(2), scale_factor=2.0).unsqueeze(2)
        if not others.shape[2]:
            return first
        return torch.cat([first, functional.interpolate(others, scale_factor=2.0)], 2)


class DepthToTime(nn.Module):
    """Channels that become frames, rows and columns; the first frame of two is dropped."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = First(channels, channels * 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        images, channels, frames, height, width = x.shape
        x = x.view(images, channels // 8, 2, 2, 2, frames, height, width).permute(0, 1, 5, 2, 6, 3, 7, 4)
        return x.reshape(images, channels // 8, frames * 2, height * 2, width * 2)[:, :, 1:]


class PerFrame(nn.Module):
    """Norm, attention and convolution of each frame by itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(2, channels), nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        images, channels, frames, height, width = x.shape
        y = x.permute(0, 2, 1, 3, 4).reshape(images * frames, channels, height, width)
        q, k, v = (one.flatten(2).transpose(1, 2)[:, None] for one in self.qkv(self.norm(y)).chunk(3, 1))
        y = functional.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(y.shape)
        y = self.out(functional.pad(y, (1, 1, 1, 1), mode="replicate"))
        return x + y.reshape(images, frames, channels, height, width).permute(0, 2, 1, 3, 4)


class OverTime(nn.Module):
    """Norm over all frames and attention among all of their pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(2, channels), nn.Conv3d(channels, 3 * channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.flatten(2).transpose(1, 2)[:, None] for one in self.qkv(self.norm(x)).chunk(3, 1))
        return x + functional.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(x.shape)


class Shrunk(nn.Module):
    """Strided in time; then frames averaged in pairs, the first by itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, channels, 3, stride=(2, 1, 1), padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(functional.pad(x, (0, 0, 0, 0, x.shape[2] % 2, 0), mode="replicate"))
        return torch.cat([x[:, :, :1], functional.avg_pool3d(x[:, :, 1:], (2, 1, 1))], 2) if x.shape[2] > 2 else x


class Chunked(nn.Module):
    """Two frames at a time, each chunk with the last two frames of the one before, as hosts' modules keep them."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(inside, outside, 3, padding=(0, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        kept, done = torch.zeros_like(x[:, :, :1]).repeat(1, 1, 2, 1, 1), []
        for chunk in x.split(2, dim=2):
            joined = torch.cat([kept, chunk], 2)
            done.append(self.conv(joined))
            kept = joined[:, :, -2:]
        return torch.cat(done, 2)


class Exchanged(nn.Module):
    """Some frames written over, some added to."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y[:, :, 1:2] = 1.0
        y[:, :, -1:] += 3.0
        return y


class Repeated(nn.Module):
    """Each frame twice; pixels doubled likewise."""

    def forward(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)[:, :, 1:]


MODULES: dict[str, Callable[[], nn.Module]] = {
    "joined before": lambda: nn.Sequential(First(4, 8), nn.SiLU(), First(8, 4)),
    "replicated before": lambda: nn.Sequential(Padded(4, 8), nn.SiLU(), Padded(8, 4)),
    "zeros before": lambda: nn.Sequential(Padded(4, 8, "constant"), nn.SiLU(), Padded(8, 4, "constant")),
    "both ends": lambda: nn.Sequential(BothEnds(4, 8), BothEnds(8, 4)),
    "centred, norm": lambda: nn.Sequential(
        nn.Conv3d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Conv3d(8, 4, 3, padding=1)
    ),
    "first alone": lambda: nn.Sequential(Padded(4, 8), FirstAlone(), Padded(8, 4)),
    "depth to time": lambda: nn.Sequential(First(4, 8), DepthToTime(8), DepthToTime(8), First(8, 3)),
    "per frame": lambda: nn.Sequential(First(4, 8), PerFrame(8), First(8, 3)),
    "over time": lambda: nn.Sequential(First(4, 8), OverTime(8), nn.GroupNorm(2, 8), First(8, 3)),
    "shrunk": lambda: nn.Sequential(First(4, 8), Shrunk(8), First(8, 3)),
    "chunked": lambda: nn.Sequential(Chunked(4, 8), Chunked(8, 3)),
    "exchanged": lambda: nn.Sequential(First(4, 4), Exchanged(), First(4, 3)),
    "repeated": lambda: nn.Sequential(First(4, 4), Repeated(), First(4, 3)),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(1)
    return MODULES[name]().double().requires_grad_(False)


def video(frames: int, seed: int = 0) -> Tensor:
    images, channels, height, width = SIZES
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, channels, frames, height, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("name", "frames"), grid(list(MODULES), [2, 3, 4, 5, 6, 7, 9, 12], each=3))
def test_the_same_in_windows_of_any_height(name: str, frames: int) -> None:
    module, x = made(name), video(frames)
    expected = module(x)
    for rows in HEIGHTS:
        run = ExactRun(rows=rows, along="frames")
        assert torch.allclose(run.run(module, x), expected, rtol=0, atol=1e-10)
        assert run.report.materialised == []


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("centred, norm", "over time")])
def test_memory_does_not_grow_with_the_frames(name: str) -> None:
    """Beyond the result: a window, and the frames that the next one needs."""
    module = made(name)

    def beyond(frames: int) -> int:
        x = video(frames)
        out = ExactRun(rows=2, along="frames").run(module, x).nbytes
        return peak_bytes(lambda: ExactRun(rows=2, along="frames").run(module, x)) - out

    assert beyond(96) <= 1.02 * beyond(24)


@pytest.mark.parametrize("name", MODULES)
def test_handed_on_window_by_window(name: str) -> None:
    """The same frames, each once and in order, and where strips follow the module no more of them at a time."""
    module, x = made(name), video(9)
    run, taken = ExactRun(rows=2, along="frames"), []
    run.stream(lambda frames: taken.append(frames.clone()), module, x)
    expected = ExactRun(rows=2, along="frames").run(module, x)
    assert torch.equal(torch.cat(taken, 2), expected)
    assert max(frames.shape[2] for frames in taken) < expected.shape[2]


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("centred, norm", "over time")])
def test_memory_of_what_is_handed_on_does_not_grow_at_all(name: str) -> None:
    module = made(name)

    def taken(frames: int) -> int:
        x = video(frames)
        return peak_bytes(lambda: ExactRun(rows=2, along="frames").stream(lambda rows: None, module, x))

    assert taken(96) <= 1.02 * taken(24)


def test_what_needs_a_whole_map_is_known_before_any_work() -> None:
    worked = []

    def sorted_by_frames(x: Tensor) -> Tensor:
        worked.append(x)
        return x.mul(2).sort(dim=2).values

    with pytest.raises(CannotRecord, match="sort asks for a whole map"):
        UnbrokenRun(along="frames").run(sorted_by_frames, video(4))
    assert len(worked) == 1
