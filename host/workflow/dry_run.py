"""Goes through a workflow without data: loads headers, runs the nodes that only shape things, predicts the rest.

Nodes are the host's own. Which of them are run, and which stand for a stage, is said in the tables below; what is in
none of them is listed and not guessed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ...graph.to_api import DYNAMIC
from ...memory.prediction import THIS_MACHINE, CannotPredict, Card, Forecast, Stage, fake_mode, fake_tree, named_card
from ...memory.render import why_nothing_fits
from ..core.device import GB
from ..core.nodes import node_classes
from ..offload.budget import least_weights
from ..planning.fit import apply_fit, find_fit
from ..prediction.calibrated import workspaces_for
from ..prediction.header_loading import loading_headers
from ..prediction.stages import Question, coding_stage, sampling_stage, tiled_arguments
from ..prediction.text import predict_encoding
from ..prediction.vae import Coding
from ..vae.settings import VAESettings
from ..vae.wrapper import LowMemoryVAE, low_memory_vae

Workflow = dict[str, dict[str, Any]]

LOADERS = (
    "CheckpointLoaderSimple", "UNETLoader", "VAELoader", "CLIPLoader", "DualCLIPLoader", "TripleCLIPLoader",
    "QuadrupleCLIPLoader",
)  # fmt: skip
# Nodes whose first outputs are inputs of the same name: what they do changes no shape.
SAME = {
    "LoraLoader": ("model", "clip"), "LoraLoaderModelOnly": ("model",), "HeadroomReport": ("anything",),
    "HeadroomEstimate": ("samples",), "HeadroomCompare": (), "HeadroomLocalAttention": ("model",), "PreviewAny": (),
    "SaveImage": (), "PreviewImage": (), "SaveLatent": (),
    "SaveAnimatedWEBP": (), "SaveAnimatedPNG": (), "SaveWEBM": (), "SaveVideo": (), "CreateVideo": (), "Note": (),
    "MarkdownNote": (),
}  # fmt: skip
# Settings of a sampler, which no memory depends on.
SETTINGS = (
    "KSamplerSelect", "BasicScheduler", "KarrasScheduler", "ExponentialScheduler", "SDTurboScheduler",
    "BetaSamplingScheduler", "LTXVScheduler", "Flux2Scheduler", "ManualSigmas", "SplitSigmas", "FlipSigmas",
    "RandomNoise", "DisableNoise",
)  # fmt: skip
GUIDERS: dict[str, tuple[str, str | None, float | None]] = {
    "BasicGuider": ("conditioning", None, 1.0),
    "CFGGuider": ("positive", "negative", None),
}
SAMPLERS = ("KSampler", "KSamplerAdvanced", "SamplerCustom", "SamplerCustomAdvanced")
TEXT = (
    "CLIPTextEncode", "CLIPTextEncodeFlux", "CLIPTextEncodeSDXL", "CLIPTextEncodeSDXLRefiner", "CLIPTextEncodeSD3",
    "CLIPTextEncodeHiDream", "CLIPTextEncodeHunyuanDiT", "CLIPTextEncodeLumina2", "TextEncodeQwenImageEdit",
)  # fmt: skip
DECODES = ("VAEDecode", "VAEDecodeTiled", "HeadroomVAEDecode")
ENCODES = ("VAEEncode", "VAEEncodeTiled", "HeadroomVAEEncode")
# Nodes that are run as they are: they make, cut and describe tensors, and patch models.
PLAIN = (
    "EmptyLatentImage", "EmptySD3LatentImage", "EmptyFlux2LatentImage", "EmptyHunyuanLatentVideo",
    "EmptyHunyuanVideo15Latent", "EmptyHunyuanImageLatent", "EmptyLTXVLatentVideo", "EmptyMochiLatentVideo",
    "EmptyCosmosLatentVideo", "EmptyQwenImageLayeredLatentImage", "EmptyChromaRadianceLatentImage", "EmptyImage",
    "LatentUpscale", "LatentUpscaleBy", "LatentFromBatch", "RepeatLatentBatch", "LatentBatch", "LatentFlip",
    "LatentRotate", "LatentCrop", "ImageScale", "ImageScaleBy", "ImageBatch", "CLIPSetLastLayer",
    "ConditioningCombine", "ConditioningConcat", "ConditioningAverage", "ConditioningZeroOut", "FluxGuidance",
    "ConditioningSetTimestepRange", "LTXVConditioning", "ModelSamplingFlux", "ModelSamplingSD3",
    "ModelSamplingAuraFlow", "ModelSamplingDiscrete", "ModelSamplingContinuousEDM", "ModelSamplingLTXV",
    "PrimitiveInt", "PrimitiveFloat", "PrimitiveString", "PrimitiveBoolean", "HeadroomAttention", "HeadroomVAE",
    "HeadroomOffload", "HeadroomCast", "HeadroomCastCLIP",
)  # fmt: skip

# Nodes that are not followed, and take no memory of a card to speak of: pictures, masks, sound, words, choices.
NEUTRAL = (
    "ImageInvert", "ImageCrop", "ImagePadForOutpaint", "ImageBlend", "ImageBlur", "ImageSharpen", "ImageQuantize",
    "ImageCompositeMasked", "ImageFlip", "ImageRotate", "ImageStitch", "ImageFromBatch", "RepeatImageBatch",
    "RebatchImages", "ImageScaleToTotalPixels", "ImageScaleToMaxDimension", "ResizeImageMaskNode", "GetImageSize",
    "ImageToMask", "MaskToImage", "InvertMask", "SolidMask", "GrowMask", "CropMask", "MaskComposite", "FeatherMask",
    "ThresholdMask", "MaskPreview", "LoadImageMask", "LoadImageOutput", "Canny", "SetLatentNoiseMask", "RebatchLatents",
    "LatentComposite", "LatentCompositeMasked", "LatentAdd", "LatentSubtract", "LatentMultiply", "LatentInterpolate",
    "LatentBlend", "LoadLatent", "ConditioningSetArea", "ConditioningSetAreaPercentage", "ConditioningSetAreaStrength",
    "ConditioningSetMask", "ReferenceLatent", "LoadAudio", "SaveAudio", "SaveAudioMP3", "SaveAudioOpus", "PreviewAudio",
    "LoadVideo", "GetVideoComponents", "StringConcatenate", "StringSubstring", "StringLength", "CaseConverter",
    "StringTrim", "StringReplace", "PrimitiveStringMultiline", "ComfySwitchNode", "ComfyMathExpression",
)  # fmt: skip
NOTHING = (None,) * 8  # outputs that are words and charts


def is_neutral(kind: str) -> bool:
    """Whether a node by itself takes no memory of a card. Ours decide what others take."""
    return kind in (*SAME, *SETTINGS, *GUIDERS, *PLAIN, "LoadImage", *NEUTRAL) and not kind.startswith("Headroom")


class Unknown(Exception):
    """A node that is not known, or that needs one."""


@dataclass
class DryRun:
    """A workflow in the API format, on a card.

    Attributes:
        stages: what was predicted, in the order of the workflow.
        unknown: nodes that were not followed, with the reason.
        notes: what the stages leave out.
        ours: this pack's nodes by their ids.
    """

    workflow: Workflow
    card: Card
    stages: list[Stage] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    results: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    loaded: dict[tuple[str, str], tuple[Any, ...]] = field(default_factory=dict)
    mode: FakeTensorMode = field(default_factory=fake_mode)
    ours: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> DryRun:
        """Goes through all nodes."""
        for number in self._ordered():
            node = self.workflow[number]
            try:
                inputs = {name: self._value(value) for name, value in node["inputs"].items()}
                self.results[number] = self._node(node["class_type"], inputs)
            except Unknown as error:
                self.unknown[number] = str(error)
            except (CannotPredict, OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
                said = str(error).strip().partition("\n")[0]
                self.unknown[number] = f"{node['class_type']}: {said or type(error).__name__}"
        return self

    @property
    def stages_followed(self) -> bool:
        """Whether every text, sampling, encode and decode was followed."""
        kinds = {self.workflow[number]["class_type"] for number in self.unknown}
        return not kinds.intersection((*SAMPLERS, *DECODES, *ENCODES, *TEXT))

    @property
    def complete(self) -> bool:
        """Whether everything was followed, but for what takes no memory: a node that nobody knows may take any."""
        kinds = {self.workflow[number]["class_type"] for number in self.unknown}
        return not {kind for kind in kinds if not is_neutral(kind)}

    def forecast(self, limit: float, ram: int = 0) -> Forecast:
        """The stages on the card."""
        return Forecast(self.card, tuple(self.stages), limit, ram)

    def _ordered(self) -> Iterator[str]:
        """Nodes after those they depend on.

        Raises:
            ValueError: a link to a node that is not there, or a circle.
        """
        done: dict[str, bool] = {}

        def visit(number: str) -> Iterator[str]:
            if number not in self.workflow:
                raise ValueError(f"the workflow links to node {number}, which is not in it")
            if number in done:
                if not done[number]:
                    raise ValueError(f"the workflow has a circle through node {number}")
                return
            done[number] = False
            for value in self.workflow[number]["inputs"].values():
                if is_link(value):
                    yield from visit(value[0])
            done[number] = True
            yield number

        for number in self.workflow:
            yield from visit(number)

    def _value(self, value: Any) -> Any:
        if not is_link(value):
            return value
        number, output = value
        if number not in self.results or output >= len(self.results[number]):
            raise Unknown(f"needs node {number}, {self.workflow[number]['class_type']}, which is not known")
        return self.results[number][output]

    def _node(self, kind: str, inputs: dict[str, Any]) -> tuple[Any, ...]:
        if kind == "HeadroomLocalAttention":
            self.notes.append("Local Attention is counted as dense")
        if kind in SAME:
            return (*(inputs[name] for name in SAME[kind]), *NOTHING)
        if kind in SETTINGS:
            return NOTHING
        for kinds, follow in self._followers():
            if kind in kinds:
                return follow(kind, inputs)
        raise Unknown(f"{kind} is not known")

    def _followers(self) -> Iterator[tuple[Iterable[str], Callable[[str, dict[str, Any]], tuple[Any, ...]]]]:
        yield GUIDERS, self._guide
        yield SAMPLERS, self._sample
        yield (*DECODES, *ENCODES), self._code
        yield TEXT, self._text
        yield LOADERS, self._load
        yield ("HeadroomVAE",), lambda kind, inputs: (low_memory_vae(inputs.pop("vae"), VAESettings(**inputs)),)
        yield ("HeadroomFit",), self._fit
        yield ("LoadImage",), self._read
        yield PLAIN, self._run_plainly

    # ------------------------------------------------------------------------------------------- kinds of nodes

    def _load(self, kind: str, inputs: dict[str, Any]) -> tuple[Any, ...]:
        key = kind, repr(sorted(inputs.items()))
        if key not in self.loaded:
            with loading_headers(self.mode, self.card):
                self.loaded[key] = self._call(kind, inputs)
        return self.loaded[key]

    def _text(self, kind: str, inputs: dict[str, Any]) -> tuple[Any, ...]:
        if inputs.get("clip") is None:
            raise Unknown(f"{kind} has no text encoder")
        clip = inputs["clip"]
        prediction, results = predict_encoding(
            clip,
            self.card,
            lambda stand_in: self._call(kind, inputs | {"clip": stand_in}),
            self.mode,
            workspaces_for(self.card),
        )
        weights = int(clip.patcher.model_size())
        self._add(Stage("text", prediction, weights, least_weights(clip.patcher, 0)))
        return results

    def _read(self, kind: str, inputs: dict[str, Any]) -> tuple[Any, ...]:
        image = self._call(kind, inputs)
        with self.mode:
            return tuple(fake_tree(list(image)))

    def _run_plainly(self, kind: str, inputs: dict[str, Any]) -> tuple[Any, ...]:
        if "upscale_method" in inputs:  # some work on data; the size is the same by all of them
            inputs = inputs | {"upscale_method": "bilinear"}
        with loading_headers(self.mode, self.card):
            return self._call(kind, inputs)

    def _guide(self, kind: str, inputs: dict[str, Any]) -> tuple[Any, ...]:
        positive, negative, cfg = GUIDERS[kind]
        texts = {"positive": inputs[positive], "negative": inputs[negative or positive]}
        return ({"model": inputs["model"], "cfg": inputs["cfg"] if cfg is None else cfg, **texts},)

    def _sample(self, kind: str, inputs: dict[str, Any]) -> tuple[Any, ...]:
        asked = inputs["guider"] if kind == "SamplerCustomAdvanced" else inputs
        latent = inputs["latent_image"]
        question = Question(
            asked["model"], latent, positive=asked["positive"], negative=asked["negative"], cfg=float(asked["cfg"])
        )
        self._add(sampling_stage(question, self.card, self.notes))
        return latent, latent

    def _code(self, kind: str, inputs: dict[str, Any]) -> tuple[Any, ...]:
        vae, encodes = inputs["vae"], kind in ENCODES
        x = inputs["pixels"] if encodes else inputs["samples"]["samples"]
        widgets = {name: value for name, value in inputs.items() if name not in ("vae", "pixels", "samples")}
        if kind.startswith("Headroom"):
            vae, widgets = low_memory_vae(vae, VAESettings(**widgets)), {}
        coding = Coding(vae, x, encodes)
        if "tile_size" in widgets and not isinstance(vae, LowMemoryVAE):
            coding = replace(coding, tiles=tiled_arguments(vae, encodes=encodes, **widgets))
        self._add(coding_stage(coding, self.card))
        with self.mode:
            return ({"samples": latent_like(vae, x)} if encodes else pixels_like(vae, x),)

    def _fit(self, kind: str, inputs: dict[str, Any]) -> tuple[Any, ...]:
        """For the card that is asked about, unless the node names one."""
        vram, gpu = inputs.get("vram_gb", 0.0), inputs.get("gpu", THIS_MACHINE)
        card = self.card if not vram else replace(self.card, total=int(vram * GB))
        card = card if gpu == THIS_MACHINE else named_card(gpu, card.total / GB, card.reserved)
        model, vae = inputs["model"], inputs["vae"]
        question = Question(
            model, inputs["samples"], vae, positive=inputs.get("positive"), negative=inputs.get("negative"),
            cfg=float(inputs["cfg"]),
        )  # fmt: skip
        fit = find_fit(question, card, inputs["quality"], inputs.get("limit", 0.85))
        if not fit.found:
            self.notes.append(f"{kind}: {why_nothing_fits(fit)}")
            return model, vae, *NOTHING
        self.notes.append(f"{kind}: {fit.summary}")
        with loading_headers(self.mode, self.card):
            return *apply_fit(model, vae, fit), *NOTHING

    def _call(self, kind: str, inputs: dict[str, Any]) -> tuple[Any, ...]:
        """Runs a node of the host's or ours.

        Raises:
            Unknown: this host has no such node, or it does not take these inputs.
        """
        node = self.ours.get(kind) or node_classes().get(kind)
        if node is None:
            raise Unknown(f"{kind} is not in this ComfyUI")
        function: Callable[..., Any] = getattr(node, "execute", None) or getattr(node(), node.FUNCTION)
        inputs = with_choices(node, inputs)
        try:
            inspect.signature(function).bind(**inputs)
        except TypeError as error:
            raise Unknown(f"{kind}: {error}") from error
        result = function(**inputs)
        return tuple(result if isinstance(result, tuple) else result.args)

    def _add(self, stage: Stage) -> None:
        """Of equal stages the one that needs most counts."""
        for number, other in enumerate(self.stages):
            same = (other.work, other.weights, other.method) == (stage.work, stage.weights, stage.method)
            if same and (stage.work != "sampling" or stage.prediction == other.prediction):
                self.stages[number] = max(stage, other, key=lambda one: one.peak)
                return
        self.stages.append(stage)


def with_choices(node: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """As the host hands them to a node: a dynamic list's choice and the inputs that it brings are one dictionary."""
    result = dict(inputs)
    for group in node.INPUT_TYPES().values():
        for name in [name for name, spec in group.items() if spec[0] == DYNAMIC and name in inputs]:
            brought = {key: result.pop(key) for key in inputs if key.startswith(f"{name}.")}
            result[name] = {name: inputs[name], **{key.partition(".")[2]: value for key, value in brought.items()}}
    return result


def is_link(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)


def pixels_like(vae: Any, latent: Tensor) -> Tensor:
    """What a latent decodes to: (B, H, W, C), frames in a row."""
    reach = vae.spacial_compression_decode()
    frames = 1
    if latent.ndim == 5:
        ratio = vae.upscale_ratio
        in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
        frames = int(in_time(latent.shape[2]) if callable(in_time) else latent.shape[2] * in_time)
    height, width = (side * reach for side in latent.shape[-2:])
    return torch.empty(latent.shape[0] * frames, height, width, vae.output_channels)


def latent_like(vae: Any, pixels: Tensor) -> Tensor:
    """What pixels (B, H, W, C) encode to."""
    reach = vae.spacial_compression_encode()
    height, width = (side // reach for side in pixels.shape[1:3])
    if vae.latent_dim == 2:
        return torch.empty(pixels.shape[0], vae.latent_channels, height, width)
    ratio = vae.downscale_ratio
    in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
    cells = int(in_time(pixels.shape[0]) if callable(in_time) else max(1, pixels.shape[0] // in_time))
    return torch.empty(1, vae.latent_channels, cells, height, width)
