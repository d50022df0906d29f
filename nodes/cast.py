"""Layerwise Casting, of a diffusion model and of a text encoder."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io, ui

from ..host.casting.cast import COMPUTE_CHOICES, CastSettings, cast_clip, cast_model
from ..host.casting.sensitivity import Goal, cast_by_sensitivity
from ..host.core.compat import shown_when_reused
from ..offload import STORAGES
from .given import checked


def _storage_inputs() -> list[io.Input]:
    """``storage``, ``compute`` and ``skip``."""
    return [
        io.Combo.Input(
            "storage",
            options=list(STORAGES),
            default="float8_e4m3fn_scaled",
            tooltip=f"How weights are kept. Signal to noise of a weight: {_signal_to_noise()}, the unscaled ones 11 to"
            " 31 dB (what a loader's fp8 does). bfloat16 and float16 halve a float32 model. ComfyUI has no scales for"
            " convolutions: they become the nearer of plain e4m3 and e5m2.",
        ),
        io.Combo.Input(
            "compute",
            options=list(COMPUTE_CHOICES),
            default="auto",
            tooltip="What a layer computes in; its weight is brought to it for the length of the call. auto: what the"
            " model was loaded to compute in, in text encoders float32.",
        ),
        io.String.Input(
            "skip",
            default="auto",
            multiline=True,
            tooltip="What stays as it is, one rule per line. auto: norms, embedders, first and last layers, and"
            " modulation where it is under 2 % of the weights; worth 3 to 16 dB for under 1 % of a large model. Other"
            " lines are regular expressions searched for in a layer's name, such as double_blocks\\.0\\.",
        ),
    ]


def _signal_to_noise() -> str:
    """Of each storage with scales; those that are alike are named together."""
    names: dict[str, list[str]] = {}
    for name, storage in STORAGES.items():
        if storage.scaled:
            names.setdefault(f"{storage.weight_db:g} dB {storage.remark}".rstrip(), []).append(name)
    return ", ".join(f"{' and '.join(alike)} {text}" for text, alike in names.items())


def _cache_input() -> io.String.Input:
    return io.String.Input(
        "cache_file",
        default="",
        optional=True,
        advanced=True,
        tooltip="A file name, for machines whose RAM cannot hold the model twice: it is converted into"
        " output/headroom/NAME.….safetensors layer by layer and read from there, now and next time. Empty: no file.",
    )


def _report_output() -> io.String.Output:
    return io.String.Output(
        "report",
        display_name="report",
        tooltip="Tensors and bytes of each storage, signal to noise by group of layers, what stayed and why, and how"
        " much RAM the original still holds.",
    )


def _sensitivity_input() -> io.DynamicCombo.Input:
    option = io.DynamicCombo.Option
    target = io.Float.Input(
        "target_db",
        default=40.0,
        min=10.0,
        max=100.0,
        step=0.5,
        tooltip="Signal to noise of the model's output to reach, in dB: at 30 a difference is visible beside the"
        " original, at 50 hardly.",
    )
    limit = io.Float.Input(
        "size_limit",
        default=0.6,
        min=0.1,
        max=1.0,
        step=0.01,
        tooltip="Size that the model may have, as a share of what it had. 16 bits stored in 8 are 0.51 to 0.55.",
    )
    return io.DynamicCombo.Input(
        "sensitivity",
        options=[option("off", []), option("error", [target]), option("size", [limit])],
        optional=True,
        extra_dict={"advanced": True},
        tooltip="Measures what casting each group of layers does to the output (one step of a 256 px latent per group;"
        " kept for the next time) and leaves the worst as they are: until the error is small enough, or as many as the"
        " size allows. Connect positive for this.",
    )


class HeadroomCast(io.ComfyNode):
    """Stores a loaded model's weights in 8 bits (or 16, or 4) and computes in full: half the memory, from any loader.

    The input MODEL stays as it was, and LoRAs may come before or after. Nearer to the original than a loader's fp8:
    weights get scales, and the layers that matter most stay as they are."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomCast",
            display_name="Layerwise Casting",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["fp8", "int8", "quantize", "layerwise casting", "float8", "nvfp4", "convert dtype"],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="From any loader, LoRAs before or after. Flux has 22 GB of weights in 16 bits, SDXL 5. What"
                    " its file has quantised already stays as it is.",
                ),
                *_storage_inputs(),
                _cache_input(),
                _sensitivity_input(),
                io.Conditioning.Input("positive", optional=True, tooltip="Only for sensitivity: what to measure with."),
            ],
            outputs=[
                io.Model.Output(tooltip="A copy of the model; the input is unchanged."),
                _report_output(),
            ],
            **shown_when_reused(),
        )

    @classmethod
    @checked
    def execute(
        cls,
        model: Any,
        storage: str,
        compute: str,
        skip: str,
        cache_file: str = "",
        sensitivity: dict[str, Any] | None = None,
        positive: Any = None,
    ) -> io.NodeOutput:
        settings = CastSettings(storage, compute, skip, cache_file)
        goal = {name: value for name, value in (sensitivity or {}).items() if name != "sensitivity"}
        if not goal:
            result, report = cast_model(model, settings)
            return io.NodeOutput(result, report.render(), ui=ui.PreviewText(report.render()))
        result, report, chart = cast_by_sensitivity(model, settings, Goal(**goal), positive)
        shown = ui.PreviewText(report.render()).as_dict() | ui.PreviewImage(chart, cls=cls).as_dict()
        return io.NodeOutput(result, report.render(), ui=shown)


class HeadroomCastCLIP(io.ComfyNode):
    """Stores a text encoder's weights in 8 bits (or 16, or 4): T5-XXL takes 9.5 GB in 16 bits.

    The input CLIP stays as it was. Token embeddings, norms and the layers around the blocks stay as they are."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomCastCLIP",
            display_name="Layerwise Casting (text encoder)",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["fp8 t5", "fp8 clip", "quantize text encoder", "int8 clip"],
            inputs=[
                io.Clip.Input(
                    "clip", tooltip="From any loader, LoRAs before or after. T5-XXL: 9.5 GB in 16 bits, about 5 in 8."
                ),
                *_storage_inputs(),
                _cache_input(),
            ],
            outputs=[
                io.Clip.Output(tooltip="A copy of the text encoder; the input is unchanged."),
                _report_output(),
            ],
            **shown_when_reused(),
        )

    @classmethod
    @checked
    def execute(cls, clip: Any, storage: str, compute: str, skip: str, cache_file: str = "") -> io.NodeOutput:
        result, report = cast_clip(clip, CastSettings(storage, compute, skip, cache_file))
        return io.NodeOutput(result, report.render(), ui=ui.PreviewText(report.render()))
