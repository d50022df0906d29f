"""LTX's nodes of sound and of references: what decodes, encodes and refers to a sound, and prepares pictures."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...core.latents import parts_of
from ...prediction.vae import Coding
from ..calling import Outputs
from ..findings import Findings, Follow
from ..inputs import Inputs, NotFollowed
from ..sounds import resampled, sound_of

CELLS_A_MEL = 4  # frames of a mel spectrogram in a cell of a latent


def decode_sound(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """AUDIO of a latent's sound, (B, C, samples)."""
    vae, latent = _sound_vae(inputs), parts_of(inputs.latent("samples")["samples"])[-1]
    if latent.ndim != 4:
        raise NotFollowed(f"{kind}: samples gets no latent of a sound")
    found.add_coding(Coding(vae, latent))
    module = vae.first_stage_model
    seconds = (latent.shape[2] * CELLS_A_MEL - CELLS_A_MEL + 1) * module.mel_hop_length / module.sample_rate
    rate = int(module.output_sample_rate)
    with found.mode:
        waveform = torch.empty(latent.shape[0], vae.output_channels, round(seconds * rate))
    return ({"waveform": waveform, "sample_rate": rate},)


def encode_sound(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """LATENT of a sound."""
    vae = _sound_vae(inputs)
    return ({"samples": _encoded(found, vae, _waveform(inputs, "audio", vae))},)


def refer_to_sound(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A MODEL and texts that refer to a sound: it is encoded, and with guidance by it there is one more pass of the
    model after those of the step, which takes no more than they do."""
    vae = _sound_vae(inputs)
    waveform = _waveform(inputs, "reference_audio", vae)
    latent = _encoded(found, vae, waveform)
    with found.mode:
        tokens = latent.permute(0, 2, 1, 3).reshape(latent.shape[0], latent.shape[2], -1)
    texts = [
        [[text, {**options, "ref_audio": {"tokens": tokens}}] for text, options in inputs.conditioning(name)]
        for name in ("positive", "negative")
    ]
    return (inputs.model(), *texts)


def _encoded(found: Findings, vae: Any, waveform: Tensor) -> Tensor:
    found.add_coding(Coding(vae, waveform, encodes=True))
    module, ratio = vae.first_stage_model, vae.spacial_compression_encode()
    taken = waveform.shape[1] // ratio * ratio if vae.crop_input else waveform.shape[1]
    mels = math.ceil(taken * module.sample_rate / vae.audio_sample_rate) // module.mel_hop_length + 1
    cells = -(-mels // CELLS_A_MEL)
    with found.mode:
        return torch.empty(waveform.shape[0], vae.latent_channels, cells, module.latent_frequency_bins)


def _waveform(inputs: Inputs, name: str, vae: Any) -> Tensor:
    """A sound as a VAE takes it, (B, samples, C), at its rate: the host resamples it where it is kept."""
    waveform, rate = sound_of(inputs, name)
    samples = resampled(waveform.shape[2], rate, vae.audio_sample_rate)
    return torch.zeros(()).expand(waveform.shape[0], samples, waveform.shape[1])


def _sound_vae(inputs: Inputs) -> Any:
    vae = inputs.vae("audio_vae")
    if not hasattr(vae.first_stage_model, "latent_frequency_bins"):
        raise NotFollowed(f"{inputs.kind}: audio_vae gets a VAE of pictures")
    return vae


def compress(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """IMAGE as a video codec leaves it, which works on data: of even sides."""
    image = inputs.image()
    if image.ndim != 4:
        raise NotFollowed(f"{kind}: image gets no picture")
    if inputs.number("img_compression") == 0:
        return (image,)
    batch, height, width, channels = image.shape
    with found.mode:
        return (torch.empty(batch, height // 2 * 2, width // 2 * 2, channels),)


def reference_parameters(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """What a LoRA's file says of the size of its references: files of LoRAs are not read here."""
    inputs["iclora_model"]
    found.notes.append(f"{kind}: references are taken to be of full size, which is a bound if the LoRA's are smaller")
    return ({"reference_downscale_factor": 1},)


OF_LTX: dict[str, Follow] = {
    "LTXVAudioVAEDecode": decode_sound, "LTXVAudioVAEEncode": encode_sound, "LTXVReferenceAudio": refer_to_sound,
    "LTXVPreprocess": compress, "GetICLoRAParameters": reference_parameters,
}  # fmt: skip
