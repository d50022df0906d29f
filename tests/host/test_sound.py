"""Models for sound, predicted: against torch's profiler, and in whole workflows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy
import pytest
import torch

import nodes
from headroom.host.following.sounds import MISSING_SOUND
from headroom.host.following.stages.codes import codes_counted
from headroom.host.prediction.encoders import predict_encoding
from headroom.host.prediction.step import Step, predict_step
from headroom.host.prediction.vae import Coding, predict_coding
from headroom.memory.prediction import named_card

from ..nightly import some_of
from . import sound_models
from .one_step import one_call
from .test_catalogue import since_it_was_made
from .test_following import empty, followed  # noqa: F401  # a fixture
from .test_prediction import load, off_by, one_thread, this_cpu  # noqa: F401  # a fixture
from .workflows import node

pytestmark = [since_it_was_made, pytest.mark.usefixtures("extra_nodes")]
SONGS = {
    "ace_step": sound_models.ace_step, "ace_step15": sound_models.ace_step15,
    "stable_audio": sound_models.stable_audio, "stable_audio3": sound_models.stable_audio3,
}  # fmt: skip
VAES = {
    "oobleck": sound_models.oobleck, "with_vocoder": sound_models.with_vocoder,
    "with_transformers": sound_models.with_transformers,
}  # fmt: skip


class TestAgainstTheProfiler:
    @pytest.mark.parametrize("name", list(SONGS))
    @pytest.mark.parametrize("cfg", [1.0, 4.0])
    def test_a_step(self, name: str, cfg: float) -> None:
        song = SONGS[name]()
        step = Step(song.model, torch.zeros(song.shape), song.conditioning(1), song.conditioning(2), cfg)
        assert off_by(predict_step(step, this_cpu()), one_call(song.model, song, song.shape, cfg)) <= 0.02

    @pytest.mark.parametrize("name", list(VAES))
    def test_a_decode_and_an_encode(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        made = VAES[name](monkeypatch)
        scratch = name != "with_vocoder"  # an Intel with AMX takes 8 MB within one of its convolutions: not every CPU
        load(made.vae.patcher)
        latent, sound = torch.zeros(made.latent), torch.rand(1, made.samples, 2)
        found = predict_coding(Coding(made.vae, latent), this_cpu()).prediction
        assert off_by(found, lambda: made.vae.decode(latent), scratch) <= 0.02
        assert tuple(made.vae.decode(latent).shape) == (1, made.samples, 2)
        found = predict_coding(Coding(made.vae, sound, encodes=True), this_cpu()).prediction
        assert off_by(found, lambda: made.vae.encode(sound), scratch) <= 0.02
        assert tuple(made.vae.encode(sound).shape) == made.latent

    def test_a_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clip = sound_models.t5gemma(monkeypatch)
        load(clip.patcher)
        tokens = clip.tokenize("mala neko dugi " * 30)
        encode: Callable[[Any], Any] = lambda one: one.encode_from_tokens_scheduled(tokens)  # noqa: E731
        prediction, _ = predict_encoding(clip, this_cpu(), encode)
        assert off_by(prediction, lambda: encode(clip)) <= 0.02

    @pytest.mark.parametrize(("seconds", "cfg"), some_of([(4, 2.0), (4, 1.0), (20, 2.0)], 3))
    def test_a_text_encoder_that_sketches_the_sound(
        self, seconds: int, cfg: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clip = sound_models.ace15(monkeypatch)
        load(clip.patcher)
        tokens = clip.tokenize("slow piano", lyrics="la la la " * 20, duration=seconds, cfg_scale=cfg, seed=1)
        encode: Callable[[Any], Any] = lambda one: one.encode_from_tokens_scheduled(tokens)  # noqa: E731
        with codes_counted():
            prediction, found = predict_encoding(clip, this_cpu(), encode)
        assert off_by(prediction, lambda: encode(clip)) <= 0.02
        (text, options), (expected, also) = found[0], encode(clip)[0]
        assert text.shape == expected.shape
        assert (
            [len(one) for one in options["audio_codes"]] == [len(one) for one in also["audio_codes"]] == [5 * seconds]
        )


def test_a_text_of_zeros_is_computed_by_itself() -> None:
    """ACE-Step 1.5 asks: guidance is in two calls where one text is zeros, and in one call where none is."""
    for zeros, calls in ((True, 2), (False, 1)):
        song = sound_models.ace_step15(zeros)
        step = Step(song.model, torch.zeros(song.shape), song.conditioning(1), song.conditioning(2), 4.0)
        found = predict_step(step, this_cpu())
        assert found.calls == calls
        assert off_by(found, one_call(song.model, song, song.shape, 4.0)) <= 0.02


def test_a_step_on_a_card_has_its_attention() -> None:
    """This machine's ComfyUI has chosen another for itself, and ACE-Step 1.5 does not say that it may be exchanged."""
    song = sound_models.ace_step15()
    step = Step(song.model, torch.zeros(song.shape), song.conditioning(1), song.conditioning(2), 1.0)
    layers = sum("attn" in name.rpartition(".")[2] for name, _ in song.model.model.diffusion_model.named_modules())
    assert sum(predict_step(step, named_card("sm86", 12.0)).kernels.values()) >= 0.5 * layers


def write_sound(path: Path, seconds: float, channels: int, rate: int) -> None:
    layout = {1: "mono", 2: "stereo"}[channels]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("flac", rate=rate, layout=layout)
        samples = numpy.zeros((1, int(seconds * rate) * channels), dtype=numpy.int16)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout=layout)
        frame.sample_rate = rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode())


def waveform_of(run: Any, number: str) -> tuple[tuple[int, ...], int]:
    (sound, *_) = run.results[number]
    return tuple(sound["waveform"].shape), sound["sample_rate"]


class TestSounds:
    @pytest.mark.parametrize(("channels", "rate"), [(1, 16000), (2, 44100)])
    def test_one_counts_by_its_header(self, empty: Path, channels: int, rate: int) -> None:  # noqa: F811
        write_sound(empty / "song.flac", 3.0, channels, rate)
        run = followed({"1": node("LoadAudio", audio="song.flac")})
        assert not run.unknown
        assert not run.notes
        assert waveform_of(run, "1") == ((1, channels, 3 * rate), rate)

    def test_one_that_is_not_there_is_named(self, empty: Path) -> None:  # noqa: F811
        run = followed({"1": node("LoadAudio", audio="song.mp3")})
        assert run.notes == ["'song.mp3' is not there: taken to have 120 s of 2 channels, 44100 samples a second"]
        assert waveform_of(run, "1") == ((1, 2, 120 * 44100), MISSING_SOUND.rate)
        assert run.complete

    @pytest.mark.parametrize("name", ["../secret.mp3", "/etc/secret.mp3", "../secret.mp3 [output]"])
    def test_names_that_lead_out_are_refused(self, empty: Path, name: str) -> None:  # noqa: F811
        run = followed({"1": node("LoadAudio", audio=name)})
        assert run.unknown["1"].endswith("leads out of ComfyUI's folders")

    def test_a_damaged_one_is_a_sentence(self, empty: Path) -> None:  # noqa: F811
        (empty / "song.mp3").write_bytes(b"no sound at all")
        run = followed({"1": node("LoadAudio", audio="song.mp3")})
        assert run.unknown["1"].startswith("LoadAudio: 'song.mp3' is no sound that can be read")

    def test_they_are_cut_and_put_together_as_by_comfyui(self, empty: Path) -> None:  # noqa: F811
        write_sound(empty / "low.flac", 3.0, 1, 16000)
        write_sound(empty / "high.flac", 2.0, 2, 48000)
        graph = {
            "1": node("LoadAudio", audio="low.flac"),
            "2": node("LoadAudio", audio="high.flac"),
            "3": node("TrimAudioDuration", audio=["1", 0], start_index=-2.0, duration=1.5),
            "4": node("AudioConcat", audio1=["3", 0], audio2=["2", 0], direction="after"),
            "5": node("AudioMerge", audio1=["3", 0], audio2=["2", 0], merge_method="add"),
            "6": node("AudioAdjustVolume", audio=["4", 0], volume=-6),
            "7": node("SaveAudioMP3", audio=["6", 0], filename_prefix="x", quality="V0"),
        }
        run = followed(graph)
        assert not run.unknown
        for number, kind in (("3", "TrimAudioDuration"), ("4", "AudioConcat"), ("5", "AudioMerge")):
            given = {name: real(empty, graph, value) for name, value in graph[number]["inputs"].items()}
            (sound,) = nodes.NODE_CLASS_MAPPINGS[kind].execute(**given).args
            assert waveform_of(run, number) == (tuple(sound["waveform"].shape), sound["sample_rate"])
        assert waveform_of(run, "6") == waveform_of(run, "4")

    @pytest.mark.parametrize("kind", ["AudioMerge", "AudioConcat"])
    def test_one_beside_none_stays_as_it_is(self, empty: Path, kind: str) -> None:  # noqa: F811
        """A video may have no sound."""
        graph = {
            "1": node("LoadVideo", file="clip.mp4"),
            "2": node("GetVideoComponents", video=["1", 0]),
            "3": node("LoadAudio", audio="song.mp3"),
            "4": node(kind, audio1=["2", 1], audio2=["3", 0], direction="after", merge_method="add"),
        }
        graph["4"]["inputs"].pop("merge_method" if kind == "AudioConcat" else "direction")
        assert waveform_of(followed(graph), "4") == ((1, 2, 120 * 44100), 44100)

    def test_what_is_no_sound_is_a_sentence(self, empty: Path) -> None:  # noqa: F811
        graph = {
            "1": node("VAELoader", vae_name="ace_1.5_vae.safetensors"),
            "2": node("EmptyImage", width=64, height=64, batch_size=1, color=0),
            "3": node("VAEEncodeAudio", audio=["2", 0], vae=["1", 0]),
            "4": node("VAEDecodeAudio", samples=["2", 0], vae=["1", 0]),
            "5": node("AudioConcat", audio1=["2", 0], audio2=["2", 0], direction="after"),
        }
        run = followed(graph)
        assert run.unknown == {
            "3": "VAEEncodeAudio: audio gets no sound", "4": "VAEDecodeAudio: samples gets no latent",
            "5": "AudioConcat: audio1 gets no sound",
        }  # fmt: skip
        assert not run.stages_followed
        assert not run.complete


def real(folder: Path, graph: dict[str, Any], value: Any) -> Any:
    """A value with data, of the first nodes of a graph."""
    if not isinstance(value, list):
        return value
    inputs = graph[value[0]]["inputs"]
    given = {name: real(folder, graph, one) for name, one in inputs.items()}
    return nodes.NODE_CLASS_MAPPINGS[graph[value[0]]["class_type"]].execute(**given).args[0]


def song_of_two(codes: bool) -> dict[str, Any]:
    """ACE-Step 1.5: ten seconds."""
    text = {
        "tags": "slow piano", "lyrics": "la la la", "seed": 1, "bpm": 120, "duration": 10.0, "timesignature": "4",
        "language": "en", "keyscale": "C major", "generate_audio_codes": codes, "cfg_scale": 2.0, "temperature": 0.85,
        "top_p": 0.9, "top_k": 0, "min_p": 0.0,
    }  # fmt: skip
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="ace_step_1.5_turbo_aio.safetensors"),
        "2": node("TextEncodeAceStepAudio1.5", clip=["1", 1], **text),
        "3": node("ConditioningZeroOut", conditioning=["2", 0]),
        "4": node("EmptyAceStep1.5LatentAudio", seconds=10.0, batch_size=1),
        "5": node(
            "KSampler", model=["1", 0], positive=["2", 0], negative=["3", 0], latent_image=["4", 0], seed=1, steps=8,
            cfg=2.0, sampler_name="euler", scheduler="simple", denoise=1.0,
        ),
        "6": node("VAEDecodeAudio", samples=["5", 0], vae=["1", 2]),
        "7": node("VAEEncodeAudio", audio=["6", 0], vae=["1", 2]),
        "8": node("VAEDecodeAudioTiled", samples=["5", 0], vae=["1", 2], tile_size=64, overlap=16),
        "9": node("SaveAudioMP3", audio=["8", 0], filename_prefix="x", quality="V0"),
    }  # fmt: skip


class TestWorkflows:
    def test_a_song_is_predicted_before_anything_is_downloaded(self, empty: Path) -> None:  # noqa: F811
        run = followed(song_of_two(True))
        assert not run.unknown
        assert run.complete
        stages = [(stage.work, stage.method.partition(",")[0], stage.doubt) for stage in run.stages]
        assert stages == [
            ("text", "", ""), ("sampling", "", ""), ("decode", "in one piece", ""), ("encode", "in one piece", ""),
            ("decode", "core's tiles", ""),
        ]  # fmt: skip
        text, sampling, whole, _, tiled = run.stages
        assert text.times == 0  # how long codes take to write is not known
        assert sampling.prediction.calls == 2  # the text of zeros is computed by itself
        assert tiled.prediction.activations < 0.5 * whole.prediction.activations
        assert waveform_of(run, "6") == ((1, 2, 480_000), 48_000)
        assert tuple(run.results["7"][0]["samples"].shape) == (1, 64, 250)
        (conditioning,) = run.results["2"]
        assert conditioning[0][1]["audio_codes"] == [[0] * 50]
        without = followed(song_of_two(False)).stages[0]
        assert without.prediction.activations < text.prediction.activations
        assert without.weights == text.weights

    @pytest.mark.parametrize("seconds", [30.0, 300.0])
    def test_there_is_room_for_all_codes(self, empty: Path, seconds: float) -> None:  # noqa: F811
        graph = {number: one for number, one in song_of_two(True).items() if number in "12"}
        before = followed(graph).stages[0]
        graph["2"]["inputs"]["duration"] = 10.0 + seconds
        after = followed(graph).stages[0]
        # Keys and values of 28 layers, 8 heads of 128 channels, of two texts in 16 bits, for five codes a second.
        room = int(seconds * 5) * 28 * 8 * 128 * 2 * 2 * 2
        grown = after.prediction.activations - before.prediction.activations
        # Of many, the last pass takes more than the first.
        assert 0.97 * room <= grown <= (1.1 if seconds > 100 else 1.03) * room

    @pytest.mark.parametrize(
        ("name", "encoder", "latent"),
        [
            ("stable-audio-open-1.0.safetensors", "t5-base.safetensors", (1, 64, 216)),
            ("stable_audio_3_medium.safetensors", "t5gemma_b_b_ul2.safetensors", (1, 256, 108)),
        ],
    )
    def test_stable_audio(self, empty: Path, name: str, encoder: str, latent: tuple[int, ...]) -> None:  # noqa: F811
        graph = {
            "1": node("CheckpointLoaderSimple", ckpt_name=name),
            "2": node("CLIPLoader", clip_name=encoder, type="stable_audio", device="default"),
            "3": node("CLIPTextEncode", clip=["2", 0], text="a door that closes"),
            "4": node(
                "ConditioningStableAudio", positive=["3", 0], negative=["3", 0], seconds_start=0.0, seconds_total=10.0
            ),
            "5": node("EmptyLatentAudio", seconds=10.0, batch_size=1),
            "6": node(
                "KSampler", model=["1", 0], positive=["4", 0], negative=["4", 1], latent_image=["5", 0], seed=1,
                steps=8, cfg=5.0, sampler_name="euler", scheduler="simple", denoise=1.0,
            ),
            "7": node("VAEDecodeAudio", samples=["6", 0], vae=["1", 2]),
            "8": node("SaveAudio", audio=["7", 0], filename_prefix="x"),
        }  # fmt: skip
        run = followed(graph)
        assert not run.unknown
        assert [(stage.work, stage.doubt) for stage in run.stages] == [("text", ""), ("sampling", ""), ("decode", "")]
        assert tuple(run.results["6"][0]["samples"].shape) == latent
        samples = latent[2] * {64: 2048, 256: 4096}[latent[1]]
        assert waveform_of(run, "7") == ((1, 2, samples), 44_100)
        assert waveform_of(run, "8") == waveform_of(run, "7")

    def test_ace_step_1_goes_on_from_a_sound(self, empty: Path) -> None:  # noqa: F811
        write_sound(empty / "song.flac", 10.0, 1, 48000)
        graph = {
            "1": node("CheckpointLoaderSimple", ckpt_name="ace_step_v1_3.5b.safetensors"),
            "2": node("TextEncodeAceStepAudio", clip=["1", 1], tags="piano", lyrics="la la", lyrics_strength=0.99),
            "3": node("ConditioningZeroOut", conditioning=["2", 0]),
            "4": node("LoadAudio", audio="song.flac"),
            "5": node("VAEEncodeAudio", audio=["4", 0], vae=["1", 2]),
            "6": node("LatentOperationTonemapReinhard", multiplier=1.0),
            "7": node("LatentApplyOperationCFG", model=["1", 0], operation=["6", 0]),
            "8": node(
                "KSampler", model=["7", 0], positive=["2", 0], negative=["3", 0], latent_image=["5", 0], seed=1,
                steps=50, cfg=5.0, sampler_name="euler", scheduler="simple", denoise=0.3,
            ),
            "9": node("VAEDecodeAudio", samples=["8", 0], vae=["1", 2]),
        }  # fmt: skip
        run = followed(graph)
        assert not run.unknown
        assert [(stage.work, stage.doubt) for stage in run.stages] == [
            ("text", ""), ("encode", ""), ("sampling", ""), ("decode", ""),
        ]  # fmt: skip
        assert tuple(run.results["5"][0]["samples"].shape) == (1, 8, 16, 107)
        assert waveform_of(run, "9") == ((1, 2, 107 * 4096), 44_100)
