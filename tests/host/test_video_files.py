"""Latents decoded straight to files, files encoded straight to latents, in process: the stock frames, nothing lost."""

from __future__ import annotations

import errno
import inspect
import itertools
import math
import os
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
from headroom.host.video_files import host_video, segments, to_file
from headroom.host.video_files import output as output_folder
from headroom.host.video_files.from_file import encode_from_file
from headroom.host.video_files.host_video import Frames, video_of
from headroom.host.video_files.output import unfinished
from headroom.host.video_files.segments import Segments, bytes_of
from headroom.host.video_files.to_file import FileRequest, Written, decode_to_file
from headroom.memory.on_disk import KEEP_FREE
from headroom.video import FORMATS, FrameReader, Journal, SegmentWriter
from headroom.video.formats import FLOAT

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
def test_noise_of_a_vaes_own_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the next run too, unless all frames are there, which are of one decode."""
    samples = latent("ltx_noise", 9)
    module = sys.modules[type(AUTOENCODERS["ltx_noise"].load().first_stage_model).__module__]
    monkeypatch.setattr(module, "get_max_chunk_size", lambda device: 2**18)
    for place, failure, kept in (
        (to_file._Writing, "_tell", 0),
        (Segments, "put_together", 65),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, failure, stop_after(30) if failure == "_tell" else stopped)
            with pytest.raises(Stopped):
                decode("ltx_noise", samples)
        assert list(unfinished().glob("*/000000-*"))
        again = decode("ltx_noise", samples)
        assert ("went on from frame 65 " in again.report) == bool(kept)
        assert ("went on" in again.report) == bool(kept)
        assert FrameReader(again.path).frames == 65


def stopped(*_: Any) -> None:
    raise Stopped


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


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Bytes of each state that is written, by the frame behind which it is."""
    written, save = dict[int, int](), Journal.save_state

    def save_state(self: Journal, stop: int, tensors: State) -> None:
        save(self, stop, tensors)
        written[stop] = bytes_of(tensors)

    monkeypatch.setattr(Journal, "save_state", save_state)
    return written


@pytest.mark.usefixtures("short_segments")
def test_no_state_behind_the_last_frame(states: dict[int, int]) -> None:
    """From where nobody goes on; Wan's may be gigabytes."""
    decode("wan21", latent("wan21", 9))
    assert sorted(states) == [9, 17, 25]
    assert min(states.values()) > 1000


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("how", ["it is full", "the rest of the video needs it"])
def test_a_disk_without_room_for_states(how: str, states: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The video is written all the same; one that is ended goes on from the last state there is."""
    samples, save = latent("wan21", 9), Journal.save_state
    whole = decode("wan21", samples, filename_prefix="whole")
    size = states[17]
    full_at = [17]

    def full(self: Journal, stop: int, tensors: State) -> None:
        if how == "it is full" and stop in full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, stop, tensors)

    def free(folder: Path) -> int:
        rest = FORMATS["mkv ffv1"].disk(48, 32, 33, 17)
        return rest + size - 1 if how != "it is full" and begun[-1].kept + 8 in full_at else 10**9

    begun, begin = list[Segments](), Segments.__init__

    def noted(self: Segments, journal: Journal, encoding: Any) -> None:
        begun.append(self)
        begin(self, journal, encoding)

    monkeypatch.setattr(Segments, "__init__", noted)
    monkeypatch.setattr(segments, "LARGE", 0)
    monkeypatch.setattr(segments, "free_in", free)
    monkeypatch.setattr(Journal, "save_state", full)
    with monkeypatch.context() as patch:
        patch.setattr(to_file._Writing, "_tell", stop_after(24))
        with pytest.raises(Stopped):
            decode("wan21", samples)
    written = decode("wan21", samples)
    assert "went on from frame 9 " in written.report
    assert "the disk has room for the video, but not for what the VAE keeps to go on" in written.report
    assert "goes on from frame 9, unless" in written.report
    assert written.path.read_bytes() == whole.path.read_bytes()
    full_at.clear()
    with monkeypatch.context() as patch:
        patch.setattr(to_file._Writing, "_tell", stop_after(24))
        with pytest.raises(Stopped):
            decode("wan21", samples)
    again = decode("wan21", samples)
    assert "went on from frame 17 " in again.report
    assert "the disk has room" not in again.report


def stop_after(frames: int) -> Any:
    def tell(self: Any, frame: Tensor) -> None:
        if self.at > frames:
            raise Stopped

    return tell


@pytest.mark.usefixtures("short_segments")
def test_out_of_memory_behind_a_border_without_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is not written twice, though it is computed again."""
    samples, failures, take = latent("wan21", 9), [1], to_file._Writing.take

    def full(self: Any, piece: Tensor) -> None:
        if self.at > 20 and failures:
            failures.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        take(self, piece)

    def no_room(self: Journal, stop: int, tensors: State) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(to_file._Writing, "take", full)
    monkeypatch.setattr(Journal, "save_state", no_room)
    written = decode("wan21", samples)
    assert not failures
    assert psnr(read(written.path), stock("wan21", samples)) >= 40


@pytest.mark.usefixtures("short_segments")
def test_a_state_that_cannot_be_written_closes_its_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is let go of: an open one could not be removed on Windows."""
    ended: list[object] = []
    leave = SegmentWriter.__exit__

    def exited(self: SegmentWriter, *error: Any) -> None:
        ended.append(error[0])
        leave(self, *error)

    def refused(self: Journal, stop: int, tensors: State) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(SegmentWriter, "__exit__", exited)
    monkeypatch.setattr(Journal, "save_state", refused)
    with pytest.raises(OSError, match="Input/output error"):
        decode("wan21")
    assert ended == [OSError]
    assert not list(unfinished().glob("*/*.part"))


@pytest.mark.parametrize("form", ["mkv ffv1", "png"])
def test_a_disk_that_is_full_when_all_is_put_together(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(segments, "join", full)
        patch.setattr(shutil, "move", full)
        with pytest.raises(ValueError, match=r"^filename_prefix: the disk of \S+video is full while the video is put"):
            decode("wan21", format=form)
    assert not list(Path(folder_paths.get_output_directory(), "video").glob("*.part"))
    assert "went on from frame 17 " in decode("wan21", format=form).report


@pytest.mark.parametrize("whose", ["ours", "another's"])
def test_a_join_that_was_killed(whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left in the output folder goes with the next run of the same, unless another server has that name now."""

    def killed(paths: Any, path: Path, *_: Any) -> None:
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(b"half of it")
        (note,) = unfinished().glob(f"*/{segments.JOINING}")
        os.link(part, tmp_path / "part")  # as nothing is removed of a process that is killed
        os.link(note, tmp_path / "note")
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(segments, "join", killed)
        with pytest.raises(Stopped):
            decode("wan21", format="mp4 h264")
    (journal,) = unfinished().iterdir()
    (tmp_path / "note").rename(journal / segments.JOINING)
    part = tmp_path / "video" / "test_00001_.mp4.part"
    if whose == "ours":
        (tmp_path / "part").rename(part)
    else:
        part.write_bytes(b"half of it")
    written = decode("wan21", format="mp4 h264")
    assert "went on from frame 17 " in written.report
    assert part.exists() == (whose == "another's")
    assert written.path.name == ("test_00001_.mp4" if whose == "ours" else "test_00002_.mp4")


def ended_while_pictures_move(monkeypatch: pytest.MonkeyPatch, after: int) -> Path:
    """The folder that so many pictures were moved to."""
    import shutil

    move, moved = shutil.move, list[Path]()

    def stopped(source: Any, target: Path) -> Any:
        moved.append(target)
        if len(moved) > after:
            raise Stopped
        return move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "move", stopped)
        with pytest.raises(Stopped):
            decode("wan21", format="png")
    return moved[0].parent


@pytest.mark.parametrize("note", ["", "somewhere"])
@pytest.mark.parametrize("after", [0, 5])
def test_a_note_that_names_no_folder(note: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that a full disk cut off: pictures do not go to the server's own folder, and none is missing."""
    ended_while_pictures_move(monkeypatch, after)
    (tmp_path / "cwd" / "somewhere").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "cwd")
    (place,) = unfinished().glob(f"*/{segments.MOVING}")
    place.write_text(note)
    again = decode("wan21", format="png")
    assert ("went on" in again.report) == (not after)
    assert again.path.parent.parent == tmp_path / "video"
    assert torch.equal(read(again.path), eight_bits(stock("wan21")))
    assert [path.name for path in (tmp_path / "cwd").rglob("*")] == ["somewhere"]


@pytest.mark.parametrize("gone", ["folder", "picture"])
def test_pictures_that_have_gone_since(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made anew."""
    import shutil

    folder = ended_while_pictures_move(monkeypatch, 5)
    if gone == "folder":
        shutil.rmtree(folder)
    else:
        (folder / "frame_000003.png").unlink()
    again = decode("wan21", format="png")
    assert "went on" not in again.report
    assert torch.equal(read(again.path), eight_bits(stock("wan21")))
    assert not list(unfinished().iterdir())


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


@pytest.mark.parametrize("form", ["mkv ffv1", "png"])
@pytest.mark.parametrize("full", ["headroom_unfinished", "video"])
def test_a_subfolder_on_another_disk(full: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is asked for what is going to lie there."""
    import shutil

    usage = shutil.disk_usage("/")
    needed = FORMATS[form].bytes_of(48, 32, 17)
    free = {tmp_path / name: KEEP_FREE + needed - (name == full) for name in ("headroom_unfinished", "video")}
    monkeypatch.setattr(output_folder, "on_one_disk", lambda one, other: False)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free.get(Path(path), usage.free)))
        with pytest.raises(ValueError, match=rf"17 frames of 48 x 32 as {form} needs .+ of disk in \S+{full},"):
            decode("wan21", format=form)
        free[tmp_path / full] += 1
        decode("wan21", format=form)


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


def reads_floats() -> bool:
    """Whether this host makes floats of YUV, and not 8 bits."""
    return host_video._pixels_of_yuv() == FLOAT


@pytest.mark.parametrize("kind", ["yuv420p", "yuvj420p", "yuv420p10le", "yuva420p", "gray"])
@pytest.mark.parametrize("size", [(70, 50), (35, 21), (64, 48)])
def test_frames_are_those_of_get_video_components(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    """Bit for bit, as this host's reader converts them, at widths that are whole blocks of FFmpeg's and others."""
    is_filled_up = "fillborders" in inspect.getsource(InputImpl.VideoFromFile)
    if size[0] % 2 and kind in ("yuv420p", "yuv420p10le", "yuva420p") and not is_filled_up and reads_floats():
        pytest.skip("this host does not fill up rows of an odd width: its last columns hang on what lies behind them")
    path = of_pixels(tmp_path / "given.mkv", kind, size)
    expected = video_of(path).get_components().images
    frames = torch.cat(list(Frames(video_of(path)).windows(3)))
    assert torch.equal(frames, expected)


@pytest.mark.parametrize("kind", ["yuv420p", "yuvj420p"])
def test_lossy_frames_are_those_of_get_video_components(kind: str, tmp_path: Path) -> None:
    """H.264, of limited and of full range."""
    path = of_pixels(tmp_path / "given.mp4", kind, (70, 50), "libx264")
    expected = video_of(path).get_components().images
    assert torch.equal(torch.cat(list(Frames(video_of(path)).windows(3))), expected)


def of_pixels(path: Path, kind: str, size: tuple[int, int], encoder: str = "ffv1") -> Path:
    """Five frames of noise, in pixels of a kind."""
    import av

    width, height = size
    noise = (torch.rand(5, height, width, 3, generator=torch.Generator().manual_seed(1)) * 255).byte().numpy()
    full_range = kind.startswith("yuvj")
    if encoder == "ffv1" and full_range:
        encoder = "mjpeg"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(encoder, rate=16)
        stream.width, stream.height, stream.pix_fmt = width, height, kind
        stream.codec_context.color_range = 2 if full_range else 1
        stream.codec_context.colorspace = 1  # BT.709
        for frame in noise:
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format=kind)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


def test_a_start_before_the_end() -> None:
    """Video Slice counts a negative one from there; hosts that do not tell the window are read likewise."""
    path = decode("wan21", fps=8, format="mp4 h264").path
    for start, duration, first, count in ((-1.0, 0.0, 9, 8), (-0.5, 0.25, 13, 2), (-9.0, 0.5, 0, 4), (0.5, 0.5, 4, 4)):
        video = InputImpl.VideoFromFile(str(path), start_time=start, duration=duration)
        assert host_video._trim_of(video) == pytest.approx((max(0, first / 8), duration))
        frames = Frames(video)
        assert frames.count == count
        assert torch.equal(torch.cat(list(frames.windows(16))), video.get_components().images)
        if window := getattr(video, "get_active_trim_window", None):
            assert host_video._trim_of(video) == window()


def test_frames_that_are_too_small_are_refused() -> None:
    kind = AUTOENCODERS["wan21"]
    written = write(eight_bits(kind.pixels(32, 40, 5)))
    with pytest.raises(ValueError, match="width, height: the frames would be 2 x 32, smaller than the 8 px"):
        encode_from_file(kind.load(), Frames(video_of(written)), Resizing(2, 32), 0.0)


def write(pixels: Tensor) -> Path:
    """A lossless file of frames."""
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
