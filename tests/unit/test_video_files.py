"""Video files: what is written comes back, segments join without a seam, and what was killed goes on."""

from __future__ import annotations

import errno
import filecmp
import importlib
import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from av.video.reformatter import VideoReformatter
from torch import Tensor

from headroom.video import (
    FORMATS,
    Audio,
    FrameReader,
    Journal,
    JournalIsLocked,
    JournalPlan,
    SegmentWriter,
    check,
    check_audio,
    clean,
    formats,
    join,
    picture_names,
    pixels,
    rate,
    write_list,
    write_pictures,
)
from headroom.video.lock import FolderLock
from headroom.video.state_file import read_tensors, write_tensors
from headroom.video.writer import encoder_options

journaling, locking = (importlib.import_module(f"headroom.video.{name}") for name in ("journal", "lock"))
joining = importlib.import_module("headroom.video.join")  # the package's name of it is the function's

WIDTH, HEIGHT = 64, 64
NTSC = Fraction(30000, 1001)
FILM = rate(23.976)
CONTAINERS = [form for form in FORMATS.values() if not form.is_sequence]
SEQUENCES = [form for form in FORMATS.values() if form.is_sequence]
LOSSY = [form for form in CONTAINERS if form.crf is not None]
UNEVEN = (1, 13, 2, 27, 7)  # frames of five segments


def noise(frames: int, width: int = WIDTH, height: int = HEIGHT) -> Tensor:
    return torch.rand(frames, height, width, 3, generator=torch.Generator().manual_seed(frames))


def moving(frames: int, width: int = WIDTH, height: int = HEIGHT, first: int = 0) -> Tensor:
    """Smooth, each frame another: what a lossy codec keeps."""
    x, y = torch.linspace(0, 3, width), torch.linspace(0, 2, height)[:, None]
    times = torch.arange(first, first + frames)[:, None, None] / 10
    channels = [(0.5 + 0.45 * torch.sin(x + y + times * speed)) for speed in (1, 2, 3)]
    return torch.stack(channels, -1)


def write(path: Path, name: str, frames: Tensor, fps: Fraction = NTSC, pieces: int = 4) -> Path:
    form = FORMATS[name]
    with SegmentWriter(path, form, frames.shape[2], frames.shape[1], fps) as writer:
        for piece in frames.split(pieces):
            writer.add(piece)
    return path


def segments(folder: Path, name: str, lengths: tuple[int, ...] = UNEVEN) -> list[Path]:
    paths, first = [], 0
    for length in lengths:
        path = folder / f"{first}.{FORMATS[name].extension}"
        paths.append(write(path, name, moving(length, first=first)))
        first += length
    return paths


def read(source: Path | io.BytesIO, **limits: float) -> Tensor:
    return torch.cat(list(FrameReader(source, **limits).windows(7)))


def truncated(frames: Tensor, most: int) -> Tensor:
    """What an integer format keeps of a frame, as the host truncates it."""
    return (frames * most).clamp(0, most).to(torch.int32).float() / most


def gops(path: Path, encoder: str = "libx264", kind: str = "yuv420p", dropped: Sequence[int] = ()) -> Path:
    """40 frames, a keyframe every ten."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream(encoder, rate=10)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, kind
        stream.options = {"g": "10", "sc_threshold": "0", "flags": "+cgop"} if encoder == "libx264" else {}
        for number, frame in enumerate(truncated(moving(40), 255).mul(255).byte().numpy()):
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format=kind)
            picture.pts, picture.time_base = number, Fraction(1, 10)
            if number not in dropped:
                output.mux(stream.encode(picture))
        output.mux(stream.encode(None))
    return path


def remuxed(source: Path, path: Path, from_frame: int = 0, shown_from: int = 0, **options: str) -> Path:
    """The packets from a frame on, with the time 0 at another: as ``ffmpeg -ss ... -c copy`` does it."""
    with av.open(str(source)) as given, av.open(str(path), "w", options=options) as output:
        video = given.streams.video[0]
        stream = output.add_stream_from_template(video)
        clock = video.time_base
        assert clock is not None
        for packet in list(given.demux(video)):
            if packet.size and packet.pts * clock >= Fraction(from_frame, 10):
                packet.pts -= int(Fraction(shown_from, 10) / clock)
                packet.dts -= int(Fraction(shown_from, 10) / clock)
                packet.stream = stream
                output.mux(packet)
    return path


def name_of(form: formats.FileFormat) -> str:
    return form.name


def rows_of(plane: av.video.plane.VideoPlane) -> np.ndarray:
    return np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)


class UsedMemory:
    """Makes frames in memory that holds a number wherever nothing is written."""

    def __init__(self, fill: int) -> None:
        self.fill = fill

    def __call__(self, width: int, height: int, pixels: str) -> av.VideoFrame:
        frame = av.VideoFrame(width, height, pixels)
        for plane in frame.planes:
            rows_of(plane)[:] = self.fill
        return frame

    def from_ndarray(self, array: np.ndarray, format: str) -> av.VideoFrame:
        height, width = array.shape[:2]
        frame = self(width, height, format)
        rows_of(frame.planes[0])[:height, : array.strides[0]] = array.view(np.uint8).reshape(height, -1)
        return frame


def elsewhere(folder: Path, code: str, *arguments: str) -> list[str | Path]:
    """A command that runs code in another process, in which the pack is found by its name."""
    (folder / "pack").mkdir(exist_ok=True)
    if not (folder / "pack" / "headroom").exists():
        (folder / "pack" / "headroom").symlink_to(Path(__file__).parents[2])
    begin = "import sys\nsys.path.insert(0, sys.argv[1])\n"
    return [sys.executable, "-c", begin + code, folder / "pack", *arguments]


def psnr(a: Tensor, b: Tensor) -> float:
    return float(-10 * torch.log10(((a - b) ** 2).mean()))


def decoded_times(path: Path) -> list[Fraction]:
    with av.open(str(path)) as container:
        return [frame.pts * frame.time_base for frame in container.decode(video=0)]


class TestFormats:
    def test_the_order_is_for_ever(self) -> None:
        """Workflows hold choices by position."""
        assert list(FORMATS) == [
            "mp4 h264", "mp4 h264 10-bit", "webm vp9", "webm av1", "mkv ffv1", "mkv ffv1 16-bit",
            "png", "png 16-bit", "exr",
        ]  # fmt: skip

    @pytest.mark.parametrize("form", FORMATS.values(), ids=name_of)
    def test_the_encoder_takes_the_pixels(self, form: formats.FileFormat) -> None:
        assert form.pixels in {known.name for known in av.Codec(form.encoder, "w").video_formats or ()}
        assert check(form.name, WIDTH, HEIGHT, 24, form.crf) is form

    def test_rates_are_thousandths_as_the_host_s(self) -> None:
        assert rate(24) == 24
        assert rate(23.976) == Fraction(23976, 1000)
        assert rate(29.97002997) == Fraction(29970, 1000)
        assert rate(NTSC) == NTSC

    @pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf"), 1000.5, 0.0001])
    def test_rates_that_are_none(self, fps: float) -> None:
        with pytest.raises(ValueError, match=r"^fps is .+: set it to a number from 0\.01 to 1000$"):
            check("png", WIDTH, HEIGHT, fps)

    @pytest.mark.parametrize(
        ("name", "size", "crf", "sentence"),
        [
            ("gif", (48, 32), None, r"^format is 'gif', which is not known: choose one of mp4 h264, .+, exr$"),
            ("webm av1", (48, 31), 32, r"even sizes"),
            ("mp4 h264", (35, 32), 23, r"needs even sizes, .+ 35x32: choose mkv ffv1, or decode at 34x32$"),
            ("mp4 h264 10-bit", (34, 1), 23, r"^format mp4 h264 10-bit .+ or decode at 34x2$"),
            ("mp4 h264", (64, 64), 51.5, r"^crf is 51\.5: mp4 h264 takes 0 to 51, usually 23$"),
            ("webm vp9", (48, 32), -1, r"^crf is -1: webm vp9 takes 0 to 63, usually 32$"),
            ("webm av1", (64, 64), 0, r"^crf is 0: webm av1 takes 1 to 63"),
            ("webm av1", (64, 64), float("nan"), r"^crf is nan"),
            ("webm av1", (62, 64), 32, r"^format webm av1 takes 64 to 8192 pixels a side, and the frames are 62x64"),
            ("mp4 h264", (16386, 16), 23, r"^format mp4 h264 takes 1 to 16384 pixels a side"),
            ("exr", (0, 16), None, r"the frames are 0x16: "),
        ],
    )
    def test_what_is_refused(self, name: str, size: tuple[int, int], crf: float | None, sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            check(name, *size, 24, crf)

    def test_what_lossless_formats_ignore(self) -> None:
        assert check("mkv ffv1", 35, 21, 24, 99).name == "mkv ffv1"

    def test_an_encoder_that_this_build_lacks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = av.Codec

        def without(name: str, mode: str) -> av.Codec:
            return real("no such encoder" if name == "libx264" else name, mode)

        monkeypatch.setattr(formats.av, "Codec", without)
        with pytest.raises(ValueError, match=r"^format mp4 h264 needs the encoder libx264, .+: choose webm vp9, "):
            check("mp4 h264", WIDTH, HEIGHT, 24)


class TestLossless:
    @pytest.mark.parametrize(("name", "most"), [("mkv ffv1", 255), ("mkv ffv1 16-bit", 65535)])
    @pytest.mark.parametrize("size", [(48, 32), (35, 21), (5, 3)])
    def test_ffv1(self, tmp_path: Path, name: str, most: int, size: tuple[int, int]) -> None:
        frames = noise(9, *size)
        path = write(tmp_path / "a.mkv", name, frames)
        assert torch.equal(read(path), truncated(frames, most))

    @pytest.mark.parametrize(("name", "most"), [("png", 255), ("png 16-bit", 65535), ("exr", 0)])
    def test_pictures(self, tmp_path: Path, name: str, most: int) -> None:
        frames = noise(3, 35, 21)
        names = write_pictures(tmp_path, "a", 7, frames, FORMATS[name])
        assert names == [f"a_{number:06}.{FORMATS[name].extension}" for number in (8, 9, 10)]
        assert sorted(os.listdir(tmp_path)) == names
        for frame, file in zip(frames, names):
            assert torch.equal(read(tmp_path / file)[0], truncated(frame, most) if most else frame)

    def test_what_is_no_number_of_a_picture(self, tmp_path: Path) -> None:
        frames = torch.zeros(1, 2, 2, 4, dtype=torch.float16)
        frames[0, 0, 0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
        frames[0, 1, 1, :3] = torch.tensor([-0.5, 0.5, 1.5])
        for name, middle in (("mkv ffv1", 127 / 255), ("exr", 0.5)):
            if name == "exr":
                (file,) = write_pictures(tmp_path, "a", 0, frames, FORMATS[name])
                back = read(tmp_path / file)[0]
            else:
                back = read(write(tmp_path / "a.mkv", name, frames))[0]
            assert back[0, 0].tolist() == [0, 1, 0]
            assert back[1, 1].tolist() == pytest.approx([0, middle, 1])

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    def test_other_dtypes(self, tmp_path: Path, dtype: torch.dtype) -> None:
        frames = noise(2).to(dtype)
        exact = (frames.double() if dtype == torch.float64 else frames.float()).mul(255).to(torch.uint8)
        assert torch.equal(read(write(tmp_path / "a.mkv", "mkv ffv1", frames)), exact.float() / 255)


class TestLossy:
    @pytest.mark.parametrize("form", LOSSY, ids=name_of)
    def test_all_frames_come_back_much_as_they_were(self, tmp_path: Path, form: formats.FileFormat) -> None:
        frames = moving(21)
        path = write(tmp_path / f"a.{form.extension}", form.name, frames, FILM)
        reader = FrameReader(path)
        assert (reader.frames, reader.width, reader.height) == (21, WIDTH, HEIGHT)
        assert float(reader.rate) == pytest.approx(23.976, rel=1e-3)
        back = read(path)
        assert back.shape == frames.shape
        assert psnr(back, frames) > 30
        # Each frame is its own, not its neighbour's: frames differ by far more than the codec's error.
        nearest = [min(range(21), key=lambda i: float(((frames[i] - one) ** 2).mean())) for one in back]
        assert nearest == list(range(21))

    def test_crf_is_heard(self, tmp_path: Path) -> None:
        sizes = []
        for crf in (5, 45):
            with SegmentWriter(tmp_path / "a.mp4", FORMATS["mp4 h264"], WIDTH, HEIGHT, NTSC, crf) as writer:
                writer.add(noise(4))
            sizes.append((tmp_path / "a.mp4").stat().st_size)
        assert sizes[0] > 3 * sizes[1]

    @pytest.mark.parametrize(("name", "source"), [("mp4 h264", "rgb24"), ("mp4 h264 10-bit", "rgb48le")])
    def test_one_segment_is_what_save_video_writes(self, tmp_path: Path, name: str, source: str) -> None:
        """Made as the host makes it, frame by frame."""
        # FFmpeg 8.1 converts 16 bits by chance at widths that are no whole blocks.
        width = 50 if source == "rgb24" else 64
        frames, kind = moving(20, width, 30), FORMATS[name].pixels
        options = encoder_options(FORMATS[name], 23)
        with av.open(str(tmp_path / "stock.mp4"), "w") as output:
            stream = output.add_stream("h264", rate=NTSC)
            stream.width, stream.height, stream.pix_fmt = width, 30, kind
            # Without the processor's latest instructions, by which x264 does not do the same twice.
            stream.options = {"crf": "23", **{k: v for k, v in options.items() if k == "x264-params"}}
            for frame in frames:
                dtype, most = (np.uint8, 255) if source == "rgb24" else (np.uint16, 65535)
                array = (frame * most).clamp(0, most).numpy().astype(dtype)
                output.mux(stream.encode(av.VideoFrame.from_ndarray(array, format=source).reformat(format=kind)))
            output.mux(stream.encode(None))
        assert torch.equal(read(write(tmp_path / "a.mp4", name, frames)), read(tmp_path / "stock.mp4"))

    @pytest.mark.parametrize("size", [(48, 32), (36, 22), (34, 22), (50, 30), (2, 2)])
    @pytest.mark.parametrize("form", LOSSY, ids=name_of)
    def test_every_even_size(self, tmp_path: Path, form: formats.FileFormat, size: tuple[int, int]) -> None:
        """FFmpeg's conversions know some widths that they spoil; no column may be far off."""
        if min(size) < form.least:
            size = (size[0] + 64, size[1] + 64)
        frames = moving(3, *size)
        back = read(write(tmp_path / f"a.{form.extension}", form.name, frames))
        assert float((back - frames).abs().mean((0, 1, 3)).max()) < 0.1
        assert back.shape == frames.shape


class TestWriter:
    def test_nothing_is_there_until_it_is_whole(self, tmp_path: Path) -> None:
        with SegmentWriter(tmp_path / "a.mkv", FORMATS["mkv ffv1"], WIDTH, HEIGHT, NTSC) as writer:
            writer.add(noise(1))
            assert os.listdir(tmp_path) == ["a.mkv.part"]
        assert os.listdir(tmp_path) == ["a.mkv"]

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
    def test_an_error_leaves_what_was_there_before(self, tmp_path: Path, kind: type[BaseException]) -> None:
        path = tmp_path / "a.mkv"
        path.write_bytes(b"before")

        def cancelled() -> None:
            with SegmentWriter(path, FORMATS["mkv ffv1"], WIDTH, HEIGHT, NTSC) as writer:
                writer.add(noise(2))
                raise kind("cancelled")

        with pytest.raises(kind, match="cancelled"):
            cancelled()
        assert os.listdir(tmp_path) == ["a.mkv"]
        assert path.read_bytes() == b"before"

    def test_no_frames(self, tmp_path: Path) -> None:
        with (
            pytest.raises(ValueError, match=r"^a\.mp4 has no frames"),
            SegmentWriter(tmp_path / "a.mp4", FORMATS["mp4 h264"], WIDTH, HEIGHT, NTSC),
        ):
            pass
        assert not os.listdir(tmp_path)

    @pytest.mark.parametrize(
        "frames", [noise(1, 46), noise(1)[0], noise(1)[..., :2], noise(1).to(torch.uint8)], ids=range(4)
    )
    def test_frames_that_are_none(self, tmp_path: Path, frames: Tensor) -> None:
        with (
            pytest.raises(ValueError, match=r"^frames are .+: a float tensor \(frames, 64, 64, 3\) is written here$"),
            SegmentWriter(tmp_path / "a.mkv", FORMATS["mkv ffv1"], WIDTH, HEIGHT, NTSC) as writer,
        ):
            writer.add(frames)
        assert not os.listdir(tmp_path)

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match=r"No such file.+a\.mp4"):
            write(tmp_path / "none" / "a.mp4", "mp4 h264", noise(1))

    def test_what_the_encoder_refuses(self, tmp_path: Path) -> None:
        form = replace(FORMATS["webm vp9"], pixels="rgb48le")
        with (
            pytest.raises(ValueError, match=r"^format: webm vp9 does not take 64x64 at crf 32 \(.+\): choose another$"),
            SegmentWriter(tmp_path / "a.webm", form, WIDTH, HEIGHT, NTSC),
        ):
            pass
        with pytest.raises(ValueError, match=r"^format mp4 h264 needs even sizes"):
            write(tmp_path / "a.mp4", "mp4 h264", noise(1, 35, 21))
        assert not os.listdir(tmp_path)

    def test_the_other_writer_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="write_pictures writes them"):
            SegmentWriter(tmp_path / "a.png", FORMATS["png"], WIDTH, HEIGHT, NTSC)
        with pytest.raises(ValueError, match="SegmentWriter writes it"):
            write_pictures(tmp_path, "a", 0, noise(1), FORMATS["webm vp9"])

    def test_a_full_disk_is_an_error_of_the_disk(self, tmp_path: Path) -> None:
        assert os.path.exists("/dev/full"), "/dev/full is missing: run this on Linux"
        (tmp_path / "a.mkv.part").symlink_to("/dev/full")
        with pytest.raises(OSError, match=r"No space left on device: .+a\.mkv") as caught:
            write(tmp_path / "a.mkv", "mkv ffv1", noise(4, 256, 256))
        assert caught.value.errno == errno.ENOSPC
        assert not os.listdir(tmp_path)

    @pytest.mark.parametrize("form", [form for form in CONTAINERS if form.name != "mp4 h264 10-bit"], ids=name_of)
    def test_the_same_frames_give_the_same_file(self, tmp_path: Path, form: formats.FileFormat) -> None:
        """A video that went on after a kill is to be the uninterrupted one.

        x264 with 10 bits gives another file in one of a hundred runs, with the same frames in: its tree of macroblocks
        and its threads do not go together. Without either it does not.
        """
        frames = moving(9, 320, 192)
        files = {write(tmp_path / "a", form.name, frames).read_bytes() for _ in range(12)}
        assert len(files) == 1

    def test_memory_that_was_used_before_is_not_written(self, tmp_path: Path) -> None:
        """glibc fills what it gives out with a number: on AVX-512 x264's 8 bits would give another file for each."""
        code = (
            "import torch\nfrom fractions import Fraction\nfrom headroom.video import FORMATS, SegmentWriter\n"
            "frames = torch.rand(9, 12, 20, 3, generator=torch.Generator().manual_seed(0))\n"
            "frames = frames.repeat_interleave(16, 1).repeat_interleave(16, 2)\n"
            "for form in FORMATS.values():\n"
            "    if not form.is_sequence:\n"
            "        with SegmentWriter(f'{sys.argv[2]}/{form.name}', form, 320, 192, Fraction(24)) as writer:\n"
            "            writer.add(frames)\n"
        )
        for fill in ("17", "170"):
            (tmp_path / fill).mkdir()
            command = elsewhere(tmp_path, code, str(tmp_path / fill))
            environment = {**os.environ, "MALLOC_PERTURB_": fill}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr
        names = [form.name for form in CONTAINERS if form.name != "mp4 h264 10-bit"]
        assert filecmp.cmpfiles(tmp_path / "17", tmp_path / "170", names, shallow=False) == (names, [], [])

    @pytest.mark.parametrize("form", LOSSY, ids=name_of)
    def test_what_lies_behind_the_rows_is_not_written(
        self, form: formats.FileFormat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Memory that was used before: FFmpeg 8.1 reads beyond rows of 16 bits that are no whole blocks."""
        found = []
        for fill in (0, 255, 100):
            monkeypatch.setattr(pixels, "av", SimpleNamespace(VideoFrame=UsedMemory(fill)))
            (picture,) = pixels.pictures(moving(1, 472, 264), form, VideoReformatter())
            size = 2 if form.frames == formats.BITS_16 else 1  # bytes
            found.append([rows_of(plane)[: plane.height, : plane.width * size].tobytes() for plane in picture.planes])
        assert found[0] == found[1] == found[2]


class TestSequence:
    def list_of(self, folder: Path, count: int = 6, fps: Fraction = NTSC) -> Path:
        names = write_pictures(folder, "a", 0, moving(count), FORMATS["png"])
        assert names == picture_names("a", 0, count, FORMATS["png"])
        write_list(folder / "a.ffconcat", names, fps)
        return folder / "a.ffconcat"

    @pytest.mark.parametrize("fps", [NTSC, Fraction(8), FILM], ids=str)
    def test_a_list_is_one_video(self, tmp_path: Path, fps: Fraction) -> None:
        path = self.list_of(tmp_path, fps=fps)
        reader = FrameReader(path)
        assert (reader.frames, reader.rate) == (6, fps)
        assert torch.equal(read(path), truncated(moving(6), 255))
        assert torch.equal(read(path, start_time=float(2 / fps), duration=float(3 / fps)), read(path)[2:5])
        assert FrameReader(path, float(2 / fps), float(3 / fps)).frames == 3

    def test_what_ffmpeg_makes_of_it_by_itself(self, tmp_path: Path) -> None:
        """As the docstring tells: all frames, times in 25ths; if FFmpeg learns more, the list can too."""
        path = self.list_of(tmp_path, fps=Fraction(5))
        with av.open(str(path)) as container:
            assert container.streams.video[0].average_rate == 25
            assert len(list(container.decode(video=0))) == 6
        assert decoded_times(path) == [Fraction(number, 5) for number in range(6)]
        text = path.read_text()
        path.write_text(text.replace("duration 0.200000", "option framerate 5"))
        with pytest.raises(av.error.InvalidDataError):
            av.open(str(path))

    @pytest.mark.parametrize("name", ["../a.png", "a b.png", ".a.png", "/a.png", "ä.png"])
    def test_names_that_a_list_cannot_hold(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ValueError, match=r"^filename prefix: .+ cannot stand in a list: use letters"):
            write_list(tmp_path / "a.ffconcat", [name], NTSC)
        with pytest.raises(ValueError, match="no pictures"):
            write_list(tmp_path / "a.ffconcat", [], NTSC)
        assert not os.listdir(tmp_path)

    def test_lists_of_others(self, tmp_path: Path) -> None:
        """Are FFmpeg's to read."""
        path = self.list_of(tmp_path)
        path.write_text(path.read_text().replace("# frames a second: 30000/1001", "#"))
        reader = FrameReader(path)
        assert (reader.rate, reader.frames) == (25, 6)


class TestJoin:
    @pytest.mark.parametrize("form", CONTAINERS, ids=name_of)
    def test_five_uneven_segments_are_as_one(self, tmp_path: Path, form: formats.FileFormat) -> None:
        pieces = segments(tmp_path, form.name)
        path = tmp_path / f"joined.{form.extension}"
        assert join(pieces, path, NTSC) == 50
        times = decoded_times(path)
        if form.extension == "mp4":
            assert times == [number / NTSC for number in range(50)]
        else:  # whose clock has milliseconds
            assert times == [Fraction(int(number / NTSC * 1000 + Fraction(1, 2)), 1000) for number in range(50)]
        whole = write(tmp_path / f"whole.{form.extension}", form.name, moving(50))
        assert times == decoded_times(whole)
        reader = FrameReader(path)
        assert (reader.frames, FrameReader(whole).frames) == (50, 50)
        assert float(reader.rate) == pytest.approx(float(NTSC), rel=1e-4)
        # Not encoded again: the very pictures of the segments.
        apart = torch.cat([read(piece) for piece in pieces])
        assert torch.equal(read(path), apart)

    @pytest.mark.parametrize("form", CONTAINERS, ids=name_of)
    def test_each_segment_s_start_can_be_sought(self, tmp_path: Path, form: formats.FileFormat) -> None:
        pieces = segments(tmp_path, form.name)
        path = tmp_path / f"joined.{form.extension}"
        join(pieces, path, NTSC)
        first = 0
        for piece, length in zip(pieces, UNEVEN):
            with av.open(str(path)) as container:
                stream = container.streams.video[0]
                container.seek(round(first / NTSC / stream.time_base), stream=stream)
                packet = next(packet for packet in container.demux(stream) if packet.size)
                assert packet.is_keyframe
                assert packet.pts == round(first / NTSC / stream.time_base)
            found = read(path, start_time=float(first / NTSC), duration=float(length / NTSC))
            assert torch.equal(found, read(piece))
            first += length

    @pytest.mark.parametrize("form", CONTAINERS, ids=name_of)
    def test_times_of_decoding_rise(self, tmp_path: Path, form: formats.FileFormat) -> None:
        path = tmp_path / f"joined.{form.extension}"
        join(segments(tmp_path, form.name), path, NTSC)
        with av.open(str(path)) as container:
            found = [(packet.dts, packet.pts) for packet in container.demux(video=0) if packet.size]
        assert [dts for dts, _ in found] == sorted({dts for dts, _ in found})
        assert all(dts <= pts for dts, pts in found)

    @pytest.mark.parametrize("form", CONTAINERS, ids=name_of)
    def test_twice_the_same_bytes(self, tmp_path: Path, form: formats.FileFormat) -> None:
        sound = Audio(noise(1).reshape(2, -1), 44100)
        files = []
        for folder in (tmp_path / "a", tmp_path / "b"):
            folder.mkdir()
            pieces = segments(folder, form.name, (3, 9))
            join(pieces, folder / f"j.{form.extension}", NTSC, sound, {"prompt": "{}"})
            files.append([path.read_bytes() for path in (*pieces, folder / f"j.{form.extension}")])
        assert files[0] == files[1]

    @pytest.mark.parametrize("name", ["mp4 h264", "webm vp9", "mkv ffv1"])
    def test_words_come_back(self, tmp_path: Path, name: str) -> None:
        words = {"prompt": json.dumps({"1": {"class_type": "é"}}), "workflow": json.dumps({"nodes": ['"', "\n"]})}
        path = tmp_path / f"j.{FORMATS[name].extension}"
        join(segments(tmp_path, name, (2,)), path, NTSC, metadata=words)
        with av.open(str(path)) as container:
            found = dict(container.metadata)
        # Matroska writes its tags in capitals, as it does for Save WEBM; the frontend reads both.
        assert {key.lower(): found[key] for key in found if key.lower() in words} == words
        assert name != "mp4 h264" or set(words) <= set(found)

    def test_the_index_of_an_mp4_comes_first(self, tmp_path: Path) -> None:
        join(segments(tmp_path, "mp4 h264", (5,)), tmp_path / "j.mp4", NTSC)
        data = (tmp_path / "j.mp4").read_bytes()
        assert 0 < data.index(b"moov") < data.index(b"mdat")

    def test_what_cannot_be_joined(self, tmp_path: Path) -> None:
        a = write(tmp_path / "a.mp4", "mp4 h264", noise(2))
        b = write(tmp_path / "b.mp4", "mp4 h264", noise(2, 80))
        (tmp_path / "c.mp4").write_bytes(b"no video at all")
        with pytest.raises(ValueError, match=r"^b\.mp4 was written with other settings than a\.mp4$"):
            join([a, b], tmp_path / "j.mp4", NTSC)
        with pytest.raises(ValueError, match=r"j\.avi: .+ ends in \.mp4, \.webm, \.mkv"):
            join([a], tmp_path / "j.avi", NTSC)
        with pytest.raises(ValueError, match="give segments"):
            join([], tmp_path / "j.mp4", NTSC)
        with pytest.raises(OSError, match=r"c\.mp4"):
            join([a, tmp_path / "c.mp4"], tmp_path / "j.mp4", NTSC)
        with pytest.raises(OSError, match=r"none"):
            join([a], tmp_path / "none" / "j.mp4", NTSC)
        assert sorted(os.listdir(tmp_path)) == ["a.mp4", "b.mp4", "c.mp4"]

    @pytest.mark.parametrize("audio", [None, 0.2], ids=["silent", "short sound"])
    def test_no_more_packets_for_a_longer_video(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audio: float | None
    ) -> None:
        sound = audio and Audio(torch.zeros(1, int(8000 * audio)), 8000)
        most = []
        real = joining.packets
        living = 0

        class Counted:
            """A packet that tells when it is gone."""

            def __init__(self) -> None:
                nonlocal living
                living += 1

            def __del__(self) -> None:
                nonlocal living
                living -= 1

        def watched(path: Path) -> Iterator[av.Packet]:
            for packet in real(path):
                packet.opaque = Counted()
                yield packet
                most[-1] = max(most[-1], living)

        monkeypatch.setattr(joining, "packets", watched)
        (piece,) = segments(tmp_path, "mkv ffv1", (10,))
        for times in (5, 40):
            most.append(0)
            join([piece] * times, tmp_path / "j.mkv", NTSC, sound or None)
        assert most[1] <= most[0] + 2 <= 40


class TestAudio:
    @pytest.mark.parametrize(("name", "codec"), [("mp4 h264", "aac"), ("webm vp9", "opus"), ("mkv ffv1", "flac")])
    @pytest.mark.parametrize("seconds", [0.5, 9.0], ids=["short", "long"])
    def test_it_ends_with_the_video_at_the_latest(self, tmp_path: Path, name: str, codec: str, seconds: float) -> None:
        wave = torch.sin(torch.arange(int(44100 * seconds)) * 440 * 2 * torch.pi / 44100).expand(2, -1) * 0.5
        path = tmp_path / f"j.{FORMATS[name].extension}"
        join(segments(tmp_path, name, (20, 10)), path, Fraction(30), Audio(wave, 44100))
        with av.open(str(path)) as container:
            stream = container.streams.audio[0]
            assert stream.codec_context.codec.canonical_name == codec
            frames = [frame.to_ndarray().astype(np.float64) for frame in container.decode(stream)]
            length = sum(frame.shape[-1] // (1 if stream.format.is_planar else 2) for frame in frames) / stream.rate
        assert length == pytest.approx(min(seconds, 1.0), abs=0.05)
        assert FrameReader(path).frames == 30

    def test_lossless_but_for_24_bits(self, tmp_path: Path) -> None:
        wave = noise(1).reshape(2, -1) * 2 - 1
        join(segments(tmp_path, "mkv ffv1", (30,)), tmp_path / "j.mkv", NTSC, Audio(wave, 22050))
        with av.open(str(tmp_path / "j.mkv")) as container:
            frames = [frame.to_ndarray().reshape(-1, 2).T for frame in container.decode(audio=0)]
        back = torch.from_numpy(np.concatenate(frames, 1)) / 2.0**31
        assert back.shape == wave.shape
        assert float((back - wave).abs().max()) < 2**-22

    @pytest.mark.parametrize("channels", range(1, 9))
    @pytest.mark.parametrize("name", ["mp4 h264", "webm vp9", "mkv ffv1"])
    def test_all_channels_keep_their_places(self, tmp_path: Path, name: str, channels: int) -> None:
        form = FORMATS[name]
        low = torch.sin(torch.arange(24000) / 48000 * 60 * 2 * torch.pi)  # a subwoofer's channel keeps no other
        amplitudes = torch.arange(1, channels + 1) / 10
        wave = amplitudes[:, None] * low
        path = tmp_path / f"j.{form.extension}"
        join([write(tmp_path / f"a.{form.extension}", name, moving(15, 8, 8))], path, NTSC, Audio(wave, 48000))
        with av.open(str(path)) as container:
            resampler = av.AudioResampler(format="flt")
            frames = [one for frame in container.decode(audio=0) for one in resampler.resample(frame)]
        back = np.concatenate([frame.to_ndarray().reshape(-1, frame.layout.nb_channels) for frame in frames])
        loud = np.sqrt((back.astype(np.float64) ** 2).mean(0) * 2)
        if (name, channels) == ("webm vp9", 5):  # with a silent subwoofer
            assert loud[3] < 0.01
            loud = np.delete(loud, 3)
        if (name, channels) == ("webm vp9", 7):  # whose middle behind comes from both sides
            assert loud[4] == pytest.approx(loud[5], abs=0.01)
            loud = np.delete(loud, 5) * np.where(np.arange(7) == 4, 2**0.5, 1)
        assert loud == pytest.approx(amplitudes.numpy(), abs=0.04)

    @pytest.mark.parametrize("sample_rate", [7350, 11000, 44100, 192000])
    @pytest.mark.parametrize("name", ["mp4 h264", "webm vp9", "mkv ffv1"])
    def test_any_sample_rate(self, tmp_path: Path, name: str, sample_rate: int) -> None:
        path = tmp_path / f"j.{FORMATS[name].extension}"
        sound = Audio(torch.zeros(1, sample_rate, dtype=torch.float64), sample_rate)
        join(segments(tmp_path, name, (15,)), path, NTSC, sound)
        with av.open(str(path)) as container:
            stream = container.streams.audio[0]
            length = sum(frame.samples for frame in container.decode(stream)) / stream.rate
        assert length == pytest.approx(0.5, abs=0.15 if sample_rate < 20000 else 0.05)

    @pytest.mark.parametrize(
        ("audio", "extension", "sentence"),
        [
            (Audio(torch.zeros(2, 0), 44100), None, "^audio has no samples: leave the input empty"),
            (Audio(torch.zeros(0, 9), 44100), None, "^audio has no samples"),
            (Audio(torch.zeros(2, 9), 0), None, "^audio has a sample rate of 0: it must be above 0"),
            (Audio(torch.zeros(9, 9), 44100), None, "^audio has 9 channels: give at most 8"),
            (Audio(torch.zeros(1, 2, 9), 44100), None, r"^audio is \(1, 2, 9\) of torch.float32: give one waveform"),
            (Audio(torch.zeros(2, 9, dtype=torch.int16), 44100), None, "^audio is .+ of floats$"),
            (Audio(torch.zeros(2, 9), 44100), "png", "^audio cannot be put into png files: choose a format of mp4"),
        ],
    )
    def test_what_is_refused(self, audio: Audio, extension: str | None, sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            check_audio(audio, extension)


class TestReader:
    def test_windows(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.mkv", "mkv ffv1", noise(10))
        reader = FrameReader(path)
        assert [len(window) for window in reader.windows(4)] == [4, 4, 2]
        assert torch.equal(torch.cat(list(reader.windows(3))), torch.cat(list(reader.windows(100))))
        with pytest.raises(ValueError, match="of one at least"):
            next(reader.windows(0))

    @pytest.mark.parametrize("name", ["mp4 h264", "webm vp9", "mkv ffv1"])
    def test_a_part_of_it(self, tmp_path: Path, name: str) -> None:
        """Every border of frames, and from bytes as from a file."""
        path = write(tmp_path / f"a.{FORMATS[name].extension}", name, moving(12))
        data = io.BytesIO(path.read_bytes())
        whole = read(path)
        assert torch.equal(read(data), whole)
        for first, count in [(0, 3), (1, 1), (2, 9), (5, 7), (7, 4), (11, 1)]:
            limits = {"start_time": float(first / NTSC), "duration": float(count / NTSC)}
            assert torch.equal(read(data, **limits), whole[first : first + count])
            assert FrameReader(path, **limits).frames == count
        assert len(read(path, start_time=float(6 / NTSC))) == 6

    def test_packets_of_which_no_frame_is_shown(self, tmp_path: Path) -> None:
        """VP8's encoders make such in two passes: frames that others refer to."""
        frames = read(gops(tmp_path / "a.webm", "libvpx"))
        assert len(frames) == 40
        with av.open(str(tmp_path / "a.webm")) as given, av.open(str(tmp_path / "b.webm"), "w") as output:
            video = given.streams.video[0]
            stream = output.add_stream_from_template(video)
            for number, packet in enumerate(one for one in given.demux(video) if one.size):
                data = bytearray(bytes(packet))
                data[0] &= 0xFF if number not in (5, 20) else 0xEF
                changed = av.Packet(bytes(data))
                changed.pts, changed.dts, changed.time_base = packet.pts, packet.dts, packet.time_base
                changed.is_keyframe, changed.stream = packet.is_keyframe, stream
                output.mux(changed)
        kept = [number for number in range(40) if number not in (5, 20)]
        assert FrameReader(tmp_path / "b.webm").frames == 38
        assert torch.equal(read(tmp_path / "b.webm"), frames[kept])

    def test_turned(self, tmp_path: Path) -> None:
        """A phone's: the matrix of the track's header turns it by 90 degrees."""
        path = write(tmp_path / "a.mp4", "mp4 h264", moving(3))
        data, whole = path.read_bytes(), read(path)
        one = b"\x00\x01\x00\x00"
        straight = one + bytes(12) + one + bytes(12) + b"\x40\x00\x00\x00"
        to_the_right = bytes(4) + one + bytes(4) + b"\xff\xff\x00\x00" + bytes(16) + b"\x40\x00\x00\x00"
        place = data.index(straight, data.index(b"tkhd"))
        turned = io.BytesIO(data[:place] + to_the_right + data[place + 36 :])
        reader = FrameReader(turned)
        assert (reader.width, reader.height) == (HEIGHT, WIDTH)
        assert torch.equal(next(reader.windows(3)), torch.rot90(whole, -1, (1, 2)))

    def test_what_is_no_video(self, tmp_path: Path) -> None:
        (tmp_path / "a.mp4").write_bytes(b"no video at all")
        with av.open(str(tmp_path / "b.wav"), "w") as container:
            stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
            frame.sample_rate = 8000
            container.mux(stream.encode(frame))
        with pytest.raises(ValueError, match=r"^a\.mp4 cannot be read as a video: Invalid data"):
            FrameReader(tmp_path / "a.mp4")
        with pytest.raises(ValueError, match=r"^c\.mp4 cannot be read as a video: No such file"):
            FrameReader(tmp_path / "c.mp4")
        with pytest.raises(ValueError, match=r"^the video cannot be read as a video"):
            FrameReader(io.BytesIO(b"nothing"))
        with pytest.raises(ValueError, match=r"^b\.wav has no video in it"):
            FrameReader(tmp_path / "b.wav")
        with pytest.raises(ValueError, match=r"^start_time is -1 and duration 0: neither can be below 0"):
            FrameReader(tmp_path / "a.mp4", -1)

    def test_cut_without_encoding(self, tmp_path: Path) -> None:
        """An edit list leaves out what lies between the last keyframe and the cut; the track's header counts it."""
        whole = gops(tmp_path / "whole.mp4")
        path = remuxed(whole, tmp_path / "cut.mp4", from_frame=10, shown_from=15)
        with av.open(str(path)) as container:
            assert container.streams.video[0].frames == 30
        assert FrameReader(path).frames == 25
        assert torch.equal(read(path), read(whole)[15:])

    @pytest.mark.parametrize("told", [3, 60])
    def test_a_file_that_tells_another_number(self, tmp_path: Path, told: int) -> None:
        path = gops(tmp_path / "a.avi", "mjpeg", "yuvj420p")
        data = path.read_bytes()
        place = data.index(b"strh") + 40  # behind its size: the header's dwLength
        assert data[place : place + 4] == struct.pack("<I", 40)
        path.write_bytes(data[:place] + struct.pack("<I", told) + data[place + 4 :])
        with av.open(str(path)) as container:
            assert container.streams.video[0].frames == told
        assert FrameReader(path).frames == len(read(path)) == 40

    def test_dropped_frames(self, tmp_path: Path) -> None:
        """Are empty packets of an AVI, which its header counts."""
        path = gops(tmp_path / "a.avi", "mjpeg", "yuvj420p", dropped=(5, 6, 12))
        with av.open(str(path)) as container:
            assert container.streams.video[0].frames == 40
        assert FrameReader(path).frames == len(read(path)) == 37

    def test_a_file_that_is_cut_off(self, tmp_path: Path) -> None:
        """Its header, which comes first, tells of all frames."""
        whole = gops(tmp_path / "whole.mp4")
        path = remuxed(whole, tmp_path / "a.mp4", movflags="faststart")
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
        with av.open(str(path)) as container:
            assert container.streams.video[0].frames == 40
        found = read(path)
        assert 20 < FrameReader(path).frames == len(found) < 40
        assert torch.equal(found[:20], read(whole)[:20])

    def test_packets_that_give_no_frames(self, tmp_path: Path) -> None:
        """Cut in the middle of a group, and nothing says so: those up to the next keyframe hang on what is gone."""
        path = remuxed(gops(tmp_path / "whole.mp4"), tmp_path / "cut.mkv", from_frame=5, shown_from=5)
        reader, given = FrameReader(path), list[int]()
        assert reader.frames == 35
        with pytest.raises(
            ValueError, match=r"^cut\.mkv has 35 frames by its packets, and 30 were decoded: .+ ffmpeg -i"
        ):
            given.extend(map(len, reader.windows(7)))
        assert given == [7] * 4  # and not the last
        reader.frames = 20
        given.clear()
        with pytest.raises(ValueError, match=r"has 20 frames by its packets, and 21 were decoded"):
            given.extend(map(len, reader.windows(10)))
        assert given == [10]

    @pytest.mark.parametrize("size", [(64, 48), (70, 50), (35, 21)])
    def test_yuv_in_floats(self, tmp_path: Path, size: tuple[int, int]) -> None:
        """Nearer to what was written than in 8 bits, at any width, and the same each time; RGB stays as it is."""
        width, height = size
        array = (moving(1, width * 2, height * 2)[0, ::2, ::2] * 255).numpy().astype(np.uint8)
        path = tmp_path / "a.mkv"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("ffv1", rate=1)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv444p"
            container.mux(stream.encode(av.VideoFrame.from_ndarray(array, format="rgb24").reformat(format="yuv444p")))
            container.mux(stream.encode(None))
        (found,), (again,) = (FrameReader(path, yuv=formats.FLOAT).windows(1) for _ in range(2))
        assert torch.equal(found, again)
        assert 0 < (found - read(path)).abs().max() < 1.5 / 255
        assert not torch.equal(found, (found * 255).round() / 255)
        lossless = write(tmp_path / "b.mkv", "mkv ffv1", moving(2, width, height))
        assert torch.equal(torch.cat(list(FrameReader(lossless, yuv=formats.FLOAT).windows(2))), read(lossless))

    def test_a_video_without_frames(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.mkv", "mkv ffv1", noise(1))
        assert list(FrameReader(path, 5.0, 1.0).windows(4)) == []
        assert FrameReader(path, 5.0, 1.0).frames == 0

    def test_memory_is_a_window_s(self, tmp_path: Path) -> None:
        (piece,) = segments(tmp_path, "mkv ffv1", (50,))
        peaks = []
        for times in (1, 8):
            join([piece] * times, tmp_path / "j.mkv", NTSC)
            reader = FrameReader(tmp_path / "j.mkv")
            assert reader.frames == 50 * times
            tracemalloc.start()
            largest = max(len(window) for window in reader.windows(4))
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert largest == 4
        # Frames are held by numpy, which tells of its memory: 350 of them would be 6 MB.
        assert peaks[1] < peaks[0] + 4 * HEIGHT * WIDTH * 3 * 4


class TestState:
    def test_there_and_back(self, tmp_path: Path) -> None:
        given = {
            "a": torch.randn(2, 3, 4).transpose(0, 2),
            "b": torch.arange(5, dtype=torch.int8),
            "c": torch.randn(7).bfloat16(),
            "d": torch.tensor(True),
            "e": torch.empty(0, 3),
        }
        write_tensors(tmp_path / "s.safetensors", given)
        found = read_tensors(tmp_path / "s.safetensors")
        assert found is not None
        assert {name: (one.dtype, one.tolist()) for name, one in found.items()} == {
            name: (one.dtype, one.tolist()) for name, one in given.items()
        }

    def test_the_format_is_safetensors_own(self, tmp_path: Path) -> None:
        from safetensors.torch import load_file

        write_tensors(tmp_path / "s.safetensors", {"a": torch.eye(3), "b": torch.ones(3, dtype=torch.int8)})
        assert torch.equal(load_file(tmp_path / "s.safetensors")["a"], torch.eye(3))

    @pytest.mark.parametrize("keep", [0, 7, 20, -1])
    def test_what_is_damaged_counts_as_not_there(self, tmp_path: Path, keep: int) -> None:
        path = tmp_path / "s.safetensors"
        write_tensors(path, {"a": torch.eye(3)})
        path.write_bytes(path.read_bytes()[:keep])
        assert read_tensors(path) is None
        assert read_tensors(tmp_path / "other.safetensors") is None

    def test_what_is_not_kept(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"^a is of torch.complex64, which is not kept$"):
            write_tensors(tmp_path / "s.safetensors", {"a": torch.zeros(1, dtype=torch.complex64)})
        assert not os.listdir(tmp_path)


PLAN = JournalPlan("abc", "mkv ffv1", "mkv", WIDTH, HEIGHT, 20)


def go_on(root: Path, until: int = 20, step: int = 4) -> list[int]:
    """A decode whose state is the number of frames so far; the frames that it computes."""
    computed = []
    with Journal.open(root, PLAN) as journal:
        done = journal.finished()
        first = done[-1].stop if done else 0
        state = journal.state(first) if first else {"n": torch.tensor(0)}
        while first < until:
            stop = min(first + step, until)
            assert state is not None
            assert int(state["n"]) == first
            state = {"n": torch.tensor(stop)}
            with SegmentWriter(journal.path_for(first, stop), FORMATS["mkv ffv1"], WIDTH, HEIGHT, NTSC) as writer:
                for frame in range(first, stop):
                    writer.add(moving(1, first=frame))
                    computed.append(frame)
                journal.save_state(stop, state)
            first = stop
    return computed


def spans(root: Path) -> list[tuple[int, int]]:
    with Journal.open(root, PLAN) as journal:
        return [(segment.first, segment.stop) for segment in journal.finished()]


class TestJournal:
    def test_it_goes_on_where_it_ended(self, tmp_path: Path) -> None:
        assert go_on(tmp_path, 8) == list(range(8))
        assert spans(tmp_path) == [(0, 4), (4, 8)]
        assert go_on(tmp_path) == list(range(8, 20))
        assert go_on(tmp_path) == []
        with Journal.open(tmp_path, PLAN) as journal:
            join([segment.path for segment in journal.finished()], tmp_path / "j.mkv", NTSC)
            assert torch.equal(read(tmp_path / "j.mkv"), truncated(moving(20), 255))
            assert json.loads((journal.folder / "plan.json").read_text())["key"] == "abc"
            journal.remove()
        assert os.listdir(tmp_path) == ["j.mkv"]

    def test_one_state_is_kept_and_two_while_a_segment_is_written(self, tmp_path: Path) -> None:
        go_on(tmp_path, 8)
        folder = tmp_path / "abc"
        assert sorted(path.name for path in folder.glob("*.safetensors")) == [
            "000004.safetensors",
            "000008.safetensors",
        ]
        with Journal.open(tmp_path, PLAN) as journal:
            assert [path.name for path in folder.glob("*.safetensors")] == ["000008.safetensors"]
            journal.save_state(12, {})
            assert journal.state(8) is not None
            assert journal.state(12) == {}
            assert journal.state(16) is None

    def test_a_third_state_never_lies_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """They may be gigabytes each: what nobody goes on from goes before the next one is written."""
        there: list[int] = []
        real = journaling.write_tensors

        def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
            real(path, tensors)
            there.append(len(list(path.parent.glob("*.safetensors"))))

        monkeypatch.setattr(journaling, "write_tensors", write_tensors)
        go_on(tmp_path)
        assert there == [1, 2, 2, 2, 2]

    def test_killed_between_state_and_segment(self, tmp_path: Path) -> None:
        go_on(tmp_path, 8)
        with Journal.open(tmp_path, PLAN) as journal:
            journal.save_state(12, {"n": torch.tensor(12)})
            journal.path_for(8, 12).with_name("000008-000012.mkv.part").write_bytes(b"half of it")
        assert spans(tmp_path) == [(0, 4), (4, 8)]
        assert sorted(os.listdir(tmp_path / "abc")) == [
            "000000-000004.mkv", "000004-000008.mkv", "000008.safetensors", "lock", "plan.json",
        ]  # fmt: skip
        assert go_on(tmp_path) == list(range(8, 20))

    @pytest.mark.parametrize("damage", ["missing", "cut off"])
    def test_a_segment_without_its_state_is_no_place_to_go_on(self, tmp_path: Path, damage: str) -> None:
        go_on(tmp_path, 12)
        state = tmp_path / "abc" / "000012.safetensors"
        if damage == "missing":
            state.unlink()
        else:
            state.write_bytes(state.read_bytes()[:-3])
        assert spans(tmp_path) == [(0, 4), (4, 8)]  # whose state is still there
        (tmp_path / "abc" / "000008.safetensors").unlink()
        assert spans(tmp_path) == []
        assert go_on(tmp_path) == list(range(20))

    def test_a_gap_ends_it(self, tmp_path: Path) -> None:
        go_on(tmp_path)
        (tmp_path / "abc" / "000008-000012.mkv").unlink()
        with Journal.open(tmp_path, PLAN) as journal:
            journal.save_state(8, {"n": torch.tensor(8)})
            assert journal.finished() == []  # what was behind the gap had gone, with the states
        assert go_on(tmp_path, 4) == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        "plan", [b"", b"{", b"[1]", b"null", b'{"key": "abc"}', json.dumps({"key": "abc", "frames": 21}).encode()]
    )
    def test_a_plan_that_is_damaged_or_another_s_empties_it(self, tmp_path: Path, plan: bytes) -> None:
        go_on(tmp_path, 8)
        (tmp_path / "abc" / "plan.json").write_bytes(plan)
        assert spans(tmp_path) == []
        assert sorted(os.listdir(tmp_path / "abc")) == ["lock", "plan.json"]
        assert go_on(tmp_path) == list(range(20))

    def test_names_that_are_no_segments_of_it(self, tmp_path: Path) -> None:
        go_on(tmp_path, 4)
        for name in ("000004-000008.mp4", "000004-000099.mkv", "000008-000004.mkv", "notes.txt"):
            (tmp_path / "abc" / name).write_bytes(b"")
        assert spans(tmp_path) == [(0, 4)]
        assert "notes.txt" in os.listdir(tmp_path / "abc")

    def test_frames_and_keys_that_are_none(self, tmp_path: Path) -> None:
        with Journal.open(tmp_path, PLAN) as journal:
            for first, stop in ((4, 4), (-1, 4), (16, 21)):
                with pytest.raises(ValueError, match="are none of a video of 20"):
                    journal.path_for(first, stop)
        for key in ("", "../a", "a/b", ".", "a" * 101):
            with pytest.raises(ValueError, match="is no key"):
                Journal.open(tmp_path, JournalPlan(key, "png", "png", 1, 1, 1))
        assert os.listdir(tmp_path) == ["abc"]

    def test_two_cannot_write_it(self, tmp_path: Path) -> None:
        with Journal.open(tmp_path, PLAN):
            with pytest.raises(JournalIsLocked, match=rf"decoded by process {os.getpid()} already: wait for it"):
                Journal.open(tmp_path, PLAN)
            assert clean(tmp_path, 0, 0) == 0
            assert os.listdir(tmp_path) == ["abc"]
        with Journal.open(tmp_path, PLAN) as journal:
            journal.remove()
            journal.close()
        assert not os.listdir(tmp_path)

    def test_a_killed_process_holds_nothing(self, tmp_path: Path) -> None:
        """And one that lives does, though it is another one."""
        code = (
            "from headroom.video.lock import FolderLock\nfrom pathlib import Path\n"
            "lock = FolderLock(Path(sys.argv[2]))\nprint('held', flush=True)\nsys.stdin.read()\n"
        )
        (tmp_path / "abc").mkdir()
        command = elsewhere(tmp_path, code, str(tmp_path / "abc" / "lock"))
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(JournalIsLocked, match=f"process {other.pid} already"):
                Journal.open(tmp_path, PLAN)
            other.send_signal(signal.SIGKILL)
            other.wait(120)
        Journal.open(tmp_path, PLAN).close()

    def test_a_lock_whose_file_was_removed_meanwhile(self, tmp_path: Path) -> None:
        """Is no lock: whoever comes next would make another file."""
        first = FolderLock(tmp_path / "lock")
        first.release(remove=True)
        second = FolderLock(tmp_path / "lock")
        with pytest.raises(BlockingIOError):
            FolderLock(tmp_path / "lock")
        second.release()
        second.release()

    @pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES])
    def test_what_says_that_another_one_holds_it(
        self, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(locking.fcntl, "flock", refusal(number))
        with pytest.raises(JournalIsLocked, match="is being decoded by process"):
            Journal.open(tmp_path, PLAN)

    @pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
    def test_a_file_system_without_locks(
        self, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Is written to all the same; what may be another's is not cleaned away."""
        monkeypatch.setattr(locking.fcntl, "flock", refusal(number))
        assert go_on(tmp_path, 8) == list(range(8))
        assert "abc cannot be locked: let no other server write the same video" in caplog.text
        with Journal.open(tmp_path, PLAN):
            assert clean(tmp_path, -1, 0) == 0
        assert go_on(tmp_path) == list(range(8, 20))
        with Journal.open(tmp_path, PLAN) as journal:
            journal.remove()
        assert not os.listdir(tmp_path)


def refusal(number: int) -> Callable[..., None]:
    """A call that the system refuses."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


class TestClean:
    def journal(self, root: Path, key: str, days: float, size: int) -> None:
        with Journal.open(root, JournalPlan(key, "png", "png", 1, 1, 9)) as journal:
            journal.path_for(0, 9).write_bytes(bytes(size))
        for path in (root / key).iterdir():
            os.utime(path, (time.time() - days * 86400,) * 2)

    def test_by_age_and_then_the_oldest_by_size(self, tmp_path: Path) -> None:
        for key, days in (("a", 9), ("b", 3), ("c", 2), ("d", 1)):
            self.journal(tmp_path, key, days, 100_000)
        (tmp_path / "somebody").mkdir()
        (tmp_path / "somebody" / "old.txt").write_text("else's")
        os.utime(tmp_path / "somebody" / "old.txt", (0, 0))
        assert 100_000 < clean(tmp_path, 7, 10**9) < 101_000
        assert sorted(os.listdir(tmp_path)) == ["b", "c", "d", "somebody"]
        assert 100_000 < clean(tmp_path, 7, 250_000) < 101_000
        assert sorted(os.listdir(tmp_path)) == ["c", "d", "somebody"]
        assert clean(tmp_path, 7, 250_000) == 0
        assert clean(tmp_path / "none", 0, 0) == 0

    def test_what_is_written_now_stays(self, tmp_path: Path) -> None:
        self.journal(tmp_path, "a", 9, 100)
        with Journal.open(tmp_path, JournalPlan("a", "png", "png", 1, 1, 9)):
            assert clean(tmp_path, -1, 0) == 0
        assert clean(tmp_path, -1, 0) > 100
        assert not os.listdir(tmp_path)

    def test_files_that_another_server_removes_meanwhile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between the listing of a folder and a look at a file in it."""
        self.journal(tmp_path, "a", 9, 100)
        self.journal(tmp_path, "b", 9, 100)
        real = Path.lstat

        def lstat(path: Path) -> os.stat_result:
            if path.name.startswith("000000") and path.parent.name == "a":
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            return real(path)

        monkeypatch.setattr(Path, "lstat", lstat)
        assert clean(tmp_path, 7, 10**9) > 100
        assert not os.listdir(tmp_path)

    @pytest.mark.parametrize("fails", ["iterdir", "unlink"])
    def test_what_another_user_has_left(self, fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for key in "abc":
            self.journal(tmp_path, key, 9, 100)
        real = getattr(Path, fails)

        def refused(path: Path, *arguments: object, **named: object) -> object:
            if "b" in (path.name, path.parent.name):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path, *arguments, **named)

        monkeypatch.setattr(Path, fails, refused)
        assert clean(tmp_path, 7, 10**9) > 200
        assert os.listdir(tmp_path) == ["b"]
