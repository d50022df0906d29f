"""Latents decoded straight to files, files encoded straight to latents, in process: the stock frames, nothing lost."""

from __future__ import annotations

import errno
import itertools
import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import comfy.model_management as model_management
import folder_paths
import pytest
import torch
from comfy_api.latest import InputImpl, Types
from torch import Tensor

from headroom.host.measure.runs import LOG
from headroom.host.prediction.stages import own_card
from headroom.host.prediction.streamed import predict_from_file, taken_elsewhere
from headroom.host.prediction.vae import Coding
from headroom.host.streaming.source import State
from headroom.host.vae import geometry
from headroom.host.vae.fallback import BudgetTooSmall
from headroom.host.vae.geometry import Geometry
from headroom.host.video.resizing import Resizing
from headroom.host.video_files import to_file
from headroom.host.video_files.from_file import encode_from_file
from headroom.host.video_files.host_video import Frames, video_of
from headroom.host.video_files.output import unfinished
from headroom.host.video_files.segments import Segments
from headroom.host.video_files.to_file import FileRequest, Written, decode_to_file
from headroom.memory.on_disk import KEEP_FREE
from headroom.video import FORMATS, FrameReader

from ..nightly import grid, some_of
from .autoencoders import AUTOENCODERS
from .families import psnr

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSLESS = [name for name, form in FORMATS.items() if form.crf is None]
LOSSY = [name for name, form in FORMATS.items() if form.crf is not None]


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output folder of the test's own."""
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_file, "SEGMENT", 8)


def request(**changes: Any) -> FileRequest:
    asked = {
        "format": "mkv ffv1", "fps": 16.0, "crf": -1.0, "filename_prefix": "video/test", "audio": None, "metadata": {},
    }  # fmt: skip
    return FileRequest(**{**asked, **changes})


def latent(name: str, cells: int = 5, batch: int = 1) -> dict[str, Tensor]:
    kind = AUTOENCODERS[name]
    return {"samples": kind.latent(4, 6, batch, cells_in_time=cells)}


def decode(name: str, samples: dict[str, Tensor] | None = None, budget: float = 0.0, **changes: Any) -> Written:
    torch.manual_seed(5)
    return decode_to_file(AUTOENCODERS[name].load(), samples or latent(name), request(**changes), budget)


def stock(name: str, samples: dict[str, Tensor] | None = None) -> Tensor:
    torch.manual_seed(5)
    frames = AUTOENCODERS[name].load().decode((samples or latent(name))["samples"])
    return frames.reshape(-1, *frames.shape[-3:])


def read(path: Path) -> Tensor:
    return torch.cat(list(FrameReader(path).windows(16)))


def eight_bits(frames: Tensor) -> Tensor:
    """As the host's own nodes round them."""
    return (frames * 255).clamp(0, 255).byte() / 255


@pytest.mark.parametrize("name", ["wan21", "ltx", "cogvideox", "sd"])
def test_lossless_frames_are_those_of_the_stock_path(name: str) -> None:
    samples = latent(name, batch=1 if AUTOENCODERS[name].temporal else 5)
    written = decode(name, samples)
    frames, expected = read(written.path), stock(name, samples)
    if name == "sd":  # one picture at a time rounds otherwise than five together
        assert (frames - eight_bits(expected)).abs().max() <= 1 / 255 + 1e-6
    else:
        assert torch.equal(frames, eight_bits(expected))
    assert FrameReader(written.path).rate == 16
    assert str(len(expected)) in written.report
    assert not list(unfinished().iterdir())


@pytest.mark.parametrize("name", some_of(LOSSLESS, 2))
def test_lossless_formats(name: str) -> None:
    written, expected = decode("wan21", format=name), stock("wan21")
    frames = read(written.path)
    if "16-bit" in name:
        assert torch.equal(frames, (expected * 65535).clamp(0, 65535).floor() / 65535)
    else:
        assert torch.equal(frames, expected if name == "exr" else eight_bits(expected))


@pytest.mark.parametrize("name", some_of(LOSSY, 2))
def test_lossy_formats_have_every_frame(name: str) -> None:
    samples = {"samples": AUTOENCODERS["wan21"].latent(8, 9, cells_in_time=5)}  # AV1 takes 64 px and more
    written = decode("wan21", samples, format=name, crf=10)
    reader = FrameReader(written.path)
    assert (reader.frames, reader.rate) == (17, 16)
    assert psnr(read(written.path), stock("wan21", samples)) > 20


@pytest.mark.parametrize("name", ["wan21"])
def test_the_video_goes_through_the_stock_nodes(name: str, tmp_path: Path) -> None:
    """Components, trimming, Save Video of the same codec without another encoding."""
    written = decode(name, format="mp4 h264", fps=8)
    video = video_of(written.path)
    frames = len(stock(name))
    components = video.get_components()
    assert components.images.shape == stock(name).shape
    assert components.frame_rate == 8
    assert video.get_dimensions() == tuple(reversed(components.images.shape[1:3]))
    trimmed = video.as_trimmed(0.5, 1.0, strict_duration=False)
    assert trimmed.get_components().images.shape[0] == 8
    assert Frames(trimmed).count == 8
    video.save_to(str(tmp_path / "saved.mp4"), format=Types.VideoContainer("mp4"), codec=Types.VideoCodec("h264"))
    assert torch.equal(read(tmp_path / "saved.mp4"), read(written.path))
    assert FrameReader(tmp_path / "saved.mp4").frames == frames


def test_metadata_and_counter_as_save_video_writes_them() -> None:
    import av

    prompt = {"1": {"class_type": "KSampler", "inputs": {"seed": 3}}}
    first = decode("wan21", format="mp4 h264", metadata={"prompt": prompt, "workflow": {"nodes": []}})
    second = decode("wan21", format="mp4 h264")
    assert [one.path.name for one in (first, second)] == ["test_00001_.mp4", "test_00002_.mp4"]
    with av.open(str(first.path)) as container:
        assert '"seed": 3' in container.metadata["prompt"]
        assert container.metadata["workflow"] == '{"nodes": []}'


@pytest.mark.parametrize(("name", "form"), [("mp4 h264", "mp4"), ("webm vp9", "webm"), ("mkv ffv1", "mkv")])
def test_sound(name: str, form: str) -> None:
    """Longer than the video: cut; shorter: it ends before."""
    for seconds in (0.4, 3.0):
        wave = torch.sin(torch.arange(int(44100 * seconds)) * 0.05)[None, None].expand(1, 2, -1)
        written = decode("wan21", format=name, audio={"waveform": wave, "sample_rate": 44100})
        components = InputImpl.VideoFromFile(str(written.path)).get_components()
        assert components.audio is not None
        heard = components.audio["waveform"].shape[-1] / components.audio["sample_rate"]
        assert abs(heard - min(seconds, 17 / 16)) < 0.1
        assert components.images.shape[0] == 17


# ------------------------------------------------------------------------------------------------- nothing is lost


class Stopped(Exception):
    """In the place of a kill."""


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize(("form", "name"), some_of(grid(["mp4 h264", "mkv ffv1", "png"], ["wan21", "wan22", "ltx"]), 2))
def test_what_was_ended_goes_on(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is that of a run that was not ended, byte for byte; what is kept is not computed again."""
    ahead = name == "ltx"  # whose first chunks give no frames
    samples = latent(name, 34 if ahead else 9)
    whole = decode(name, samples, format=form, filename_prefix="whole")
    taken: list[int] = []
    add = Segments.add

    def counted(self: Segments, frames: Tensor) -> None:
        taken.append(frames.shape[0])
        if sum(taken) > (140 if ahead else 25) and stops:
            raise Stopped
        add(self, frames)

    monkeypatch.setattr(Segments, "add", counted)
    stops = True
    with pytest.raises(Stopped):
        decode(name, samples, format=form)
    kept = [path for folder in unfinished().iterdir() for path in folder.iterdir()]
    assert any("000000-" in path.name for path in kept)
    assert not list(Path(folder_paths.get_output_directory(), "video").iterdir())
    taken.clear()
    stops = False
    again = decode(name, samples, format=form)
    assert "went on from frame" in again.report
    assert sum(taken) < len(stock(name, samples))
    assert files_of(again) == files_of(whole)
    assert not list(unfinished().iterdir())


def files_of(written: Written) -> list[bytes]:
    if written.path.suffix != ".ffconcat":
        return [written.path.read_bytes()]
    return [path.read_bytes() for path in sorted(written.path.parent.iterdir())]


@pytest.mark.usefixtures("short_segments")
def test_another_latent_format_or_quality_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    close = Segments.close

    def closed(self: Segments, state: State | None) -> None:
        close(self, state)
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Segments, "close", closed)
        for changes in (
            {},
            {"fps": 8.0},
            {"format": "png"},
            {"format": "mp4 h264"},
            {"format": "mp4 h264", "crf": 3.0},
        ):
            with pytest.raises(Stopped):
                decode("wan21", **changes)
        with pytest.raises(Stopped):
            decode("wan21", {"samples": latent("wan21")["samples"] * 1.001})
    assert len(list(unfinished().iterdir())) == 6
    assert "went on" in decode("wan21").report
    assert len(list(unfinished().iterdir())) == 5


@pytest.mark.usefixtures("short_segments")
def test_memory_that_runs_out_midway(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest comes in strips; no frame twice, none missing."""
    samples, failures = latent("wan21", 9), [1]
    take = to_file._Writing.take

    def full(self: Any, piece: Tensor) -> None:
        if self.at > 20 and failures:
            failures.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        take(self, piece)

    monkeypatch.setattr(to_file._Writing, "take", full)
    written = decode("wan21", samples)
    assert not failures
    assert "strips of chunks" in written.report
    frames, expected = read(written.path), stock("wan21", samples)
    assert frames.shape == expected.shape
    assert psnr(frames, expected) >= 40  # 8 bits; on a card the two ways round in 16 bits besides


@pytest.mark.usefixtures("short_segments")
def test_a_cancel_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the decode at the next chunk; the host's own flag, as its button sets it."""
    samples, close = latent("wan21", 9), Segments.close

    def cancelled(self: Segments, state: State | None) -> None:
        close(self, state)
        model_management.interrupt_current_processing()

    with monkeypatch.context() as patch:
        patch.setattr(Segments, "close", cancelled)
        with pytest.raises(model_management.InterruptProcessingException):
            decode("wan21", samples)
    again = decode("wan21", samples)
    assert "went on from frame 9 " in again.report
    assert read(again.path).shape[0] == 33


def test_pictures_that_were_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is ended while it moves them is gone on with, in the folder that it had begun."""
    import shutil

    move, moved = shutil.move, []

    def stopped(source: Any, target: Any) -> Any:
        moved.append(target)
        if len(moved) > 5:
            raise Stopped
        return move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "move", stopped)
        with pytest.raises(Stopped):
            decode("wan21", format="png")
    again = decode("wan21", format="png")
    assert again.path.parent == moved[0].parent
    assert torch.equal(read(again.path), eight_bits(stock("wan21")))
    assert not list(unfinished().iterdir())


@pytest.mark.usefixtures("short_segments")
def test_what_is_gone_on_with_is_not_cleaned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_file, "KEPT_BYTES", 0)
    close = Segments.close

    def closed(self: Segments, state: State | None) -> None:
        close(self, state)
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Segments, "close", closed)
        with pytest.raises(Stopped):
            decode("wan21")
    assert "went on from frame" in decode("wan21").report


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize(("name", "cells"), [("ltx_noise", 9), ("ltx_conditioned", 20)])
def test_noise_of_a_vaes_own_is_not_mixed(name: str, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory midway: the file is of one decode."""
    samples, failures = latent(name, cells), [1]
    module = sys.modules[type(AUTOENCODERS[name].load().first_stage_model).__module__]
    monkeypatch.setattr(module, "get_max_chunk_size", lambda device: 2**18)
    take, taken = to_file._Writing.take, []

    def full(self: Any, piece: Tensor) -> None:
        if self.kept and failures:
            failures.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        taken.append((self.at, piece.shape[2]))
        take(self, piece)

    monkeypatch.setattr(to_file._Writing, "take", full)
    written = decode(name, samples)
    assert not failures
    assert sum(at == 0 for at, _ in taken) == 2
    assert FrameReader(written.path).frames == 8 * cells - 7


@pytest.mark.usefixtures("short_segments")
def test_a_full_disk_says_where_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, add = latent("wan21", 9), Segments.add

    def full(self: Segments, frames: Tensor) -> None:
        if self.kept >= 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(self, frames)

    with monkeypatch.context() as patch:
        patch.setattr(Segments, "add", full)
        with pytest.raises(ValueError, match=r"is full after \d+ of 33 frames; .* goes on from frame \d+"):
            decode("wan21", samples)
    assert "went on from frame" in decode("wan21", samples).report


# ---------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fps": 0.0}, "fps"),
        ({"fps": float("nan")}, "fps"),
        ({"filename_prefix": "../outside"}, "leads out of the output folder"),
        ({"filename_prefix": "/etc/x"}, "leads out of the output folder"),
        ({"filename_prefix": ""}, "filename_prefix: is empty"),
        ({"filename_prefix": "9" * 400}, r"filename_prefix: 9+ cannot be written \(.*; use a shorter name"),
        ({"filename_prefix": "9" * 240}, r"filename_prefix: 9+ cannot be written \(.*; use a shorter name"),
        ({"format": "mp4 h264", "crf": 60.0}, "crf is 60"),
        ({"audio": {"waveform": torch.zeros(1, 2, 0), "sample_rate": 44100}}, "audio has no samples"),
        ({"audio": {"waveform": torch.zeros(1, 2, 100), "sample_rate": 44100}, "format": "png"}, "audio cannot be put"),
    ],
)
def test_one_sentence_before_any_work(changes: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_file.Decoding, "source", lambda *_: pytest.fail("it was begun"))
    with pytest.raises(ValueError, match=said) as failure:
        decode("wan21", **changes)
    assert "\n" not in str(failure.value)


def test_odd_sizes_with_h264(monkeypatch: pytest.MonkeyPatch) -> None:
    vae = AUTOENCODERS["pixel_space"].load()
    samples = {"samples": torch.rand(3, 3, 33, 31)}
    with pytest.raises(ValueError, match="even sizes, and the frames are 31x33"):
        decode_to_file(vae, samples, request(format="mp4 h264"), 0.0)
    assert read(decode_to_file(vae, samples, request(), 0.0).path).shape == (3, 33, 31, 3)


def test_a_disk_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**28 + 1000))
    with pytest.raises(ValueError, match=r"17 frames of 48 x 32 as mkv ffv1 needs .* are free"):
        decode("wan21")


@pytest.mark.parametrize(
    ("name", "direction"),
    [*itertools.product(["hunyuan_video", "hunyuan_video15"], ["decode", "encode"]), ("cogvideox", "decode")],
)
def test_maps_of_all_frames_find_no_disk(
    name: str, direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for beforehand is what is taken, and a disk without it is refused before any work."""
    import shutil

    kind, taken, asked = AUTOENCODERS[name], list[int](), list[int]()
    frames = write(eight_bits(kind.pixels(2 * kind.shrink, 3 * kind.shrink, 9))) if direction == "encode" else None

    def run() -> None:
        if frames is None:
            decode(name)
        else:
            encode_from_file(kind.load(), Frames(video_of(frames)), Resizing(), 0.0)

    def hold(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        taken.append(math.prod(shape) * dtype.itemsize)
        return torch.empty(tuple(shape), dtype=dtype)

    with monkeypatch.context() as patched:
        patched.setattr(Geometry, "hold", staticmethod(hold))
        patched.setattr(geometry, "require_room", lambda folder, needed, what: asked.append(needed))
        run()
    assert asked == [sum(taken)]
    if frames is None:
        coding = Coding(kind.load(), latent(name)["samples"], file_budget_gb=0.0, file_format=request().format)
        count, height, width, _ = stock(name).shape
        assert taken_elsewhere(coding) == (0, sum(taken) + FORMATS[request().format].disk(width, height, count))
    temporary, usage = tmp_path / "temporary", shutil.disk_usage("/")
    temporary.mkdir()
    full = usage._replace(free=KEEP_FREE + sum(taken) - 1)
    monkeypatch.setattr(folder_paths, "temp_directory", str(temporary))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full if Path(path) == temporary else usage)
    part = getattr(kind.load().first_stage_model, "decoder" if frames is None else "encoder")
    monkeypatch.setattr(part.conv_in, "forward", lambda *_, **__: pytest.fail("something was computed"))
    with pytest.raises(ValueError, match=r"what this VAE computes of all frames needs .* are free"):
        run()


# ------------------------------------------------------------------------------------------------------- encoding


@pytest.mark.parametrize("name", ["wan21", "wan22", "ltx", "cogvideox", "hunyuan_video", "hunyuan_video15", "sd"])
def test_a_file_is_encoded_as_its_frames_would_be(name: str) -> None:
    kind = AUTOENCODERS[name]
    pixels = eight_bits(kind.pixels(4 * kind.shrink + 3, 5 * kind.shrink, 9))
    written = write(pixels)
    found, report = encode_from_file(kind.load(), Frames(video_of(written)), Resizing(), 0.0)
    torch.manual_seed(5)
    expected = kind.load().encode(pixels)
    assert found.shape == expected.shape
    assert psnr(found, expected) >= (120 if name == "sd" else 100)
    if name not in ("ltx", "sd"):  # in chunks
        assert torch.equal(found, expected)
    assert "9 frames" in report


def test_frames_that_are_too_small_are_refused() -> None:
    kind = AUTOENCODERS["wan21"]
    written = write(eight_bits(kind.pixels(32, 40, 5)))
    with pytest.raises(ValueError, match="width, height: the frames would be 2 x 32, smaller than the 8 px"):
        encode_from_file(kind.load(), Frames(video_of(written)), Resizing(2, 32), 0.0)


def write(pixels: Tensor) -> Path:
    """A lossless file of frames."""
    from headroom.video import SegmentWriter

    path = Path(folder_paths.get_output_directory()) / "given.mkv"
    with SegmentWriter(path, FORMATS["mkv ffv1"], pixels.shape[2], pixels.shape[1], Fraction(16)) as writer:
        writer.add(pixels)
    return path


@pytest.mark.parametrize("name", ["wan21", "hunyuan_video"])
def test_an_encode_in_strips_where_the_module_has_no_room(name: str) -> None:
    """Also where something is computed of all frames behind the chunks."""
    kind = AUTOENCODERS[name]
    pixels = eight_bits(kind.pixels(128, 112, 9))
    frames = Frames(video_of(write(pixels)))
    encode_from_file(kind.load(), frames, Resizing(), 0.0)
    predicted = LOG.rows("", "")[-1].predicted
    assert predicted is not None
    asked = (predicted.weights + 0.85 * predicted.activations) / 2**30
    found, report = encode_from_file(kind.load(), frames, Resizing(), asked)
    assert psnr(found, kind.load().encode(pixels)) >= 100
    assert "strips of chunks" in report
    foretold = predict_from_file(kind.load(), pixels, own_card(kind.load().device), asked)
    assert foretold.method == "exact, in strips, from a file"
    planned = LOG.rows("", "")[-1].predicted
    assert planned is not None
    assert foretold.prediction.activations == pytest.approx(planned.activations, rel=0.01)
    with pytest.raises(BudgetTooSmall):
        predict_from_file(kind.load(), pixels, own_card(kind.load().device), predicted.weights / 2**30 + 1e-4)
    with pytest.raises(ValueError, match=r"vram_budget_gb: .* needs at least"):
        encode_from_file(kind.load(), frames, Resizing(), predicted.weights / 2**30 + 1e-4)


@pytest.mark.parametrize(("name", "gathers"), [("mochi", True), ("wan21", False), ("sd", False)])
def test_frames_that_are_gathered_count_as_disk(name: str, gathers: bool) -> None:
    pixels = AUTOENCODERS[name].pixels(64, 80, 7)
    taken = taken_elsewhere(Coding(AUTOENCODERS[name].load(), pixels, encodes=True, file_budget_gb=0.0))
    assert taken == (0, pixels.nbytes * gathers)


def test_frames_are_resized_as_upscale_image_does_it() -> None:
    import comfy.utils

    pixels = eight_bits(AUTOENCODERS["wan21"].pixels(40, 64, 5))
    scaled = comfy.utils.common_upscale(pixels.movedim(-1, 1), 48, 32, "bilinear", "center").movedim(1, -1)
    vae = AUTOENCODERS["wan21"].load()
    found, _ = encode_from_file(vae, Frames(video_of(write(pixels))), Resizing(48, 32, "bilinear", "center"), 0.0)
    assert torch.equal(found, vae.encode(scaled))
    assert Resizing(48, 0).size(64, 40) == (48, 30)
    assert Resizing(0, 20).size(64, 40) == (32, 20)


def test_a_video_of_tensors_is_encoded_without_a_file() -> None:
    pixels = AUTOENCODERS["wan21"].pixels(32, 48, 5)
    video = InputImpl.VideoFromComponents(Types.VideoComponents(images=pixels, frame_rate=Fraction(8)))
    vae = AUTOENCODERS["wan21"].load()
    found, _ = encode_from_file(vae, Frames(video), Resizing(), 0.0)
    assert torch.equal(found, vae.encode(pixels))
