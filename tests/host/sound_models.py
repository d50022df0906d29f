"""Models for sound, ComfyUI's own and small: what they are made of stays the host's; widths and counts are less."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import comfy.model_patcher
import comfy.sd
import comfy.supported_models
import pytest
import torch
from torch import Tensor, nn

from headroom.host.catalogue.tokenizers import stand_in

CPU = torch.device("cpu")
TEXT = 96  # features of a text


def drawn(network: Any) -> Any:
    """The network with weights from one normal distribution."""
    generator = torch.Generator().manual_seed(0)
    for weight in network.parameters():
        weight.data.normal_(std=0.02, generator=generator)
    return network


# --------------------------------------------------------------------------------------------------- that sample


@dataclass(frozen=True)
class Song:
    """A model, and what it wants: ``shape`` is its latent's; by ``zeros`` its negative is the positive, zeroed."""

    model: Any
    shape: tuple[int, ...]
    text: Callable[[int], tuple[Tensor, dict[str, Any]]]
    zeros: bool = False

    def conditioning(self, seed: int) -> list[Any]:
        """1 is the positive, 2 the negative."""
        text, options = self.text(seed)
        if self.zeros and seed == 2:
            text, options = torch.zeros_like(text), dict(options)
            if "conditioning_lyrics" in options:
                options["conditioning_lyrics"] = torch.zeros_like(options["conditioning_lyrics"])
        return [[text, options]]


def model_of(kind: str, config: dict[str, Any], state: dict[str, Tensor] | None = None) -> Any:
    settings = getattr(comfy.supported_models, kind)(config)
    settings.set_inference_dtype(torch.float32, None)
    base = drawn(settings.get_model(state or {}, "", device=None).eval())
    return comfy.model_patcher.ModelPatcher(base, load_device=CPU, offload_device=CPU)


def _words(seed: int, tokens: int, width: int) -> Tensor:
    return torch.randn(1, tokens, width, generator=torch.Generator().manual_seed(seed))


def ace_step15(zeros: bool = False) -> Song:
    """ACE-Step 1.5, with codes that sketch the sound."""
    config = {
        "audio_model": "ace1.5", "hidden_size": 256, "text_hidden_dim": TEXT, "num_dit_layers": 4,
        "num_lyric_layers": 2, "num_timbre_layers": 2, "num_tokenizer_layers": 1, "num_heads": 2, "num_kv_heads": 1,
        "intermediate_size": 512, "fsq_dim": 256, "encoder_hidden_size": 256, "encoder_intermediate_size": 512,
        "encoder_num_heads": 2,
    }  # fmt: skip
    length = 600

    def text(seed: int) -> tuple[Tensor, dict[str, Any]]:
        more = {"conditioning_lyrics": _words(seed + 9, 90, TEXT), "audio_codes": [[seed] * (length // 5)]}
        return _words(seed, 40, TEXT), more

    return Song(model_of("ACEStep15", config), (1, 64, length), text, zeros)


def ace_step() -> Song:
    """ACE-Step 1.0, whose lyrics are numbers of syllables."""
    config = {
        "audio_model": "ace", "attention_head_dim": 64, "inner_dim": 256, "num_attention_heads": 4, "num_layers": 3,
        "mlp_ratio": 2.5, "text_embedding_dim": TEXT, "lyric_encoder_vocab_size": 500, "lyric_hidden_size": 1024,
        "ssl_latent_dims": [64, 64], "ssl_encoder_depths": [8, 8], "max_width": 1024, "max_position": 2048,
    }  # fmt: skip

    def text(seed: int) -> tuple[Tensor, dict[str, Any]]:
        lyrics = torch.full((1, 70), seed, dtype=torch.long)
        return _words(seed, 40, TEXT), {"conditioning_lyrics": lyrics, "lyrics_strength": 0.99}

    return Song(model_of("ACEStep", config), (1, 8, 16, 320), text)


def _seconds(*names: str, learned: bool) -> dict[str, Tensor]:
    embedders = importlib.import_module("comfy.ldm.audio.embedders")
    kind = {} if learned else {"fourier_features_type": "expo"}
    found: dict[str, Tensor] = embedders.NumberConditioner(768, 0, 384, **kind).state_dict()
    return {f"conditioner.conditioners.{name}.{key}": value for name in names for key, value in found.items()}


def stable_audio() -> Song:
    """Stable Audio Open: what guides it stands before the sound."""
    config = {
        "audio_model": "dit1.0", "embed_dim": 1536, "num_heads": 24, "depth": 2, "io_channels": 64,
        "timestep_features_type": "learned",
    }  # fmt: skip
    state = _seconds("seconds_start", "seconds_total", learned=True)
    return Song(model_of("StableAudio", config, state), (1, 64, 512), lambda seed: (_words(seed, 30, 768), {}))


def stable_audio3() -> Song:
    """Stable Audio 3: the difference of two attentions, and a part of the sound that may be given."""
    config = {
        "audio_model": "dit1.0", "io_channels": 256, "embed_dim": 256, "num_heads": 4, "depth": 4,
        "cond_token_dim": 768, "project_cond_tokens": True, "global_cond_dim": 768, "global_cond_type": "adaLN",
        "global_cond_shared_embed": True, "timestep_features_type": "expo", "num_memory_tokens": 16,
        "local_add_cond_dim": 257, "norm_type": "rms_norm", "attn_kwargs": {"qk_norm": "rms", "differential": True},
    }  # fmt: skip
    state = _seconds("seconds_total", learned=False)
    state["conditioner.conditioners.prompt.padding_embedding"] = torch.zeros(768)
    return Song(model_of("StableAudio3", config, state), (1, 256, 512), lambda seed: (_words(seed, 30, 768), {}))


# ------------------------------------------------------------------------------------------- that decode and encode


@dataclass(frozen=True)
class SoundVAE:
    """An autoencoder: the latent's shape, and how many samples that is."""

    vae: comfy.sd.VAE
    latent: tuple[int, ...]
    samples: int


def _narrowed(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, **narrow: Any) -> Any:
    """A class of the host's, in whose place there is now one with less."""
    monkeypatch.setattr(owner, name, partial(getattr(owner, name), **narrow))
    return getattr(owner, name)


def _loaded(network: nn.Module) -> comfy.sd.VAE:
    """As the host's loader makes it, which tells by the tensors what it is."""
    return comfy.sd.VAE(drawn(network).state_dict())


def oobleck(monkeypatch: pytest.MonkeyPatch) -> SoundVAE:
    """Of Stable Audio Open; ACE-Step 1.5 has one with other strides."""
    made = _narrowed(monkeypatch, comfy.sd, "AudioOobleckVAE", channels=16)
    return SoundVAE(_loaded(made()), (1, 64, 48), 48 * 2048)


def with_vocoder(monkeypatch: pytest.MonkeyPatch) -> SoundVAE:
    """Of ACE-Step 1.0: pictures of a sound, and what makes sound of these."""
    pipeline = importlib.import_module("comfy.ldm.ace.vae.music_dcae_pipeline")
    widths = (64, 64, 128, 128)
    of_both = {"encoder_block_out_channels": widths, "decoder_block_out_channels": widths}
    _narrowed(monkeypatch, pipeline, "AutoencoderDC", attention_head_dim=16, **of_both)
    depths = {"depths": [1, 1, 2, 1], "dims": [32, 32, 64, 64], "num_mels": 64, "upsample_initial_channel": 512}
    _narrowed(monkeypatch, pipeline, "ADaMoSHiFiGANV1", **depths)
    return SoundVAE(_loaded(pipeline.MusicDCAE(source_sample_rate=44100)), (1, 8, 16, 16), 16 * 4096)


def with_transformers(monkeypatch: pytest.MonkeyPatch) -> SoundVAE:
    """Of Stable Audio 3."""
    module = importlib.import_module("comfy.ldm.audio.vae_sa3")
    true = module.SA3AudioVAE
    narrow = {"channels": 32, "transformer_depths": 12, "sinusoidal_blocks": 8, "sliding_window": [1, 1]}
    monkeypatch.setattr(module, "SA3AudioVAE", lambda **given: true(**{**given, **narrow}))
    return SoundVAE(_loaded(module.SA3AudioVAE()), (1, 256, 40), 40 * 4096)


# ----------------------------------------------------------------------------------------------- that encode texts


def _clip(encoder: Any, tokenizer: Any, **data: Any) -> Any:
    target = SimpleNamespace(params={}, clip=encoder, tokenizer=tokenizer)
    clip = comfy.sd.CLIP(target, tokenizer_data=data)
    drawn(clip.cond_stage_model)
    return clip


def t5gemma(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of Stable Audio 3."""
    module = importlib.import_module("comfy.text_encoders.sa3")
    config = module.T5GemmaEncoderConfig()
    vars(config).update(num_hidden_layers=3, hidden_size=256, intermediate_size=512, num_attention_heads=4)
    config.num_key_value_heads = 4
    monkeypatch.setattr(module, "T5GemmaEncoderConfig", lambda: config)
    pieces = torch.frombuffer(bytearray(stand_in("spiece_model")), dtype=torch.uint8)
    return _clip(module.SAT5GemmaModel, module.SAT5GemmaTokenizer, spiece_model=pieces)


def ace15(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of ACE-Step 1.5, with the language model that sketches the sound."""
    llama = importlib.import_module("comfy.text_encoders.llama")
    narrow = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 3}
    for name, width in {"Qwen3_06B_ACE15_Config": 96, "Qwen3_2B_ACE15_lm_Config": 128}.items():
        sizes = {"hidden_size": width, "intermediate_size": 3 * width}
        monkeypatch.setattr(llama, name, partial(getattr(llama, name), **narrow, **sizes))
    module = importlib.import_module("comfy.text_encoders.ace15")
    return _clip(module.te(lm_model="qwen3_2b"), module.ACE15Tokenizer)
