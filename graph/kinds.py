"""Kinds of the host's nodes, by their class names: what samples, guides, decodes and encodes, and ours among them.

Tables alone. What is done with a node of a kind is said where it is done.
"""

from __future__ import annotations

from typing import NamedTuple


class Conditions(NamedTuple):
    """Which inputs of a node guide a sampler.

    Attributes:
        positive, negative: names of inputs; None: there is no negative.
        guided: whether it has a cfg; without one, guidance is off.
    """

    positive: str = "positive"
    negative: str | None = "negative"
    guided: bool = True


FIT, VAE, ESTIMATE, COMPARE, REPORT, TRAINING_ESTIMATE = (
    "HeadroomFit", "HeadroomVAE", "HeadroomEstimate", "HeadroomCompare", "HeadroomReport", "HeadroomTrainingEstimate",
)  # fmt: skip
CAST_CLIP = "HeadroomCastCLIP"
SAVES_CLIP = ("CLIPSave", "CheckpointSave")  # what is written to a file is what was loaded
OUR_DECODE, OUR_ENCODE = "HeadroomVAEDecode", "HeadroomVAEEncode"
# A latent straight to a file, and a file straight to a latent.
TO_FILE, FROM_FILE = "HeadroomVAEDecodeVideo", "HeadroomVAEEncodeVideo"
# The host's own that hold all frames of a video in memory: what reads them from a file, what makes a file of them.
FRAMES_OF_A_FILE = ("GetVideoComponents",)
FRAMES_TO_A_FILE = ("CreateVideo", "SaveVideo", "SaveWEBM")
LOW_MEMORY = (OUR_DECODE, OUR_ENCODE, TO_FILE, FROM_FILE)  # what is a low-memory VAE by itself
# The sampler that takes what guides it from a node of its own; the others have the inputs themselves.
GUIDED_SAMPLER = "SamplerCustomAdvanced"
SAMPLERS = ("KSampler", "KSamplerAdvanced", "SamplerCustom", GUIDED_SAMPLER)
GUIDERS = {"BasicGuider": Conditions("conditioning", None, guided=False), "CFGGuider": Conditions()}
TRAIN, TRAINING = "TrainLoraNode", "HeadroomTraining"  # the host's, and the plan of its checkpoints
DECODE, TILED_DECODE = "VAEDecode", "VAEDecodeTiled"
DECODES = (DECODE, TILED_DECODE, OUR_DECODE)
ENCODES = ("VAEEncode", "VAEEncodeTiled", OUR_ENCODE)
# What takes a VAE and does not run it, or has its own way with it.
NO_CODING = (FIT, VAE, ESTIMATE, COMPARE, REPORT, "VAESave", "CheckpointSave")
NO_PICTURES = ("Audio", "Hunyuan3D", "Trellis")  # in the names of nodes whose VAE makes no pictures
# What people read on the nodes that are put into a workflow.
TITLES = {
    FIT: "Make It Fit", VAE: "Low-Memory VAE (exact)", CAST_CLIP: "Layerwise Casting (text encoder)",
    TRAINING: "Training Memory",
}  # fmt: skip
# Loaders of VAEs, and at which output each gives one.
VAE_LOADERS = {
    "VAELoader": 0, "CheckpointLoaderSimple": 2, "CheckpointLoader": 2, "ImageOnlyCheckpointLoader": 2,
    "unCLIPCheckpointLoader": 2,
}  # fmt: skip
