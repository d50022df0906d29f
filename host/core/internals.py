"""What Headroom reaches of ComfyUI beyond its public API: one table, looked through once when the pack is loaded.

ComfyUI promises ``comfy_api`` to node packs and nothing else; the rest it may rename in any version. Each name that the
pack stands on is listed here with who needs it, so that a renamed one costs the nodes that cannot do without and no
others. Whoever uses a new one adds a line: ``tests/host/test_internals.py`` holds the table to the source.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

OLDEST_TESTED, NEWEST_TESTED = "0.18.2", "0.33.0"
TESTED = f"Headroom is tested with ComfyUI {OLDEST_TESTED} to {NEWEST_TESTED}: update whichever is older"
VAE = ("HeadroomVAE", "HeadroomVAEDecode", "HeadroomVAEEncode")
VIDEO_NODES = ("HeadroomVAEDecodeVideo", "HeadroomVAEEncodeVideo")
CAST = ("HeadroomCast", "HeadroomCastCLIP")
FIT, ESTIMATE, COMPARE, REPORT = ("HeadroomFit",), ("HeadroomEstimate",), ("HeadroomCompare",), ("HeadroomReport",)
LOCAL, OFFLOAD, TRAINING = ("HeadroomLocalAttention",), ("HeadroomOffload",), ("HeadroomTraining",)
TRAINING_ESTIMATE = ("HeadroomTrainingEstimate",)
PREDICTING = (*ESTIMATE, *FIT, *TRAINING_ESTIMATE)


@dataclass(frozen=True)
class Internal:
    """A name of the host's.

    Attributes:
        path: ``module:name``, or ``module:Class.name``.
        lost: what is not there without it, as a clause; where it costs no node.
        nodes: ids of the nodes that are not offered without it.
    """

    path: str
    lost: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether this host has it."""
        return find(self.path, _NOWHERE) is not _NOWHERE

    @property
    def sentence(self) -> str:
        """What its absence means, and what to do."""
        without = f"without which {', '.join(self.nodes)} cannot be offered" if self.nodes else f"so that {self.lost}"
        return f"this ComfyUI has no {self.path.replace(':', '.')}, {without}; {TESTED}"


def _needed(nodes: tuple[str, ...], *paths: str) -> Iterator[Internal]:
    return (Internal(path, nodes=nodes) for path in paths)


_NOWHERE = object()
_MANAGEMENT, _WRAPPERS = "comfy.model_management:", "comfy.patcher_extension:WrappersMP."

INTERNALS: tuple[Internal, ...] = (
    # ---------------------------------------------------------------------------- losing these costs no node
    Internal("comfy_execution.utils:get_executing_context", "Memory Report cannot tell which node did what"),
    Internal("nodes:NODE_DISPLAY_NAME_MAPPINGS", "reports call nodes by their ids"),
    Internal("nodes:NODE_CLASS_MAPPINGS", "whole workflows cannot be predicted"),
    Internal("comfy.sd:CLIP", "whole workflows cannot be predicted"),
    Internal("comfy.clip_vision:ClipVisionModel", "whole workflows cannot be predicted"),
    Internal("comfy.clip_vision:Output", "whole workflows cannot be predicted"),
    Internal("folder_paths:get_annotated_filepath", "workflows with pictures of their own cannot be predicted"),
    Internal("folder_paths:get_input_directory", "workflows with pictures of their own cannot be predicted"),
    Internal(f"{_MANAGEMENT}InterruptProcessingException", "reports say of cancelled work that it failed"),
    Internal(f"{_MANAGEMENT}OOM_EXCEPTION", "only torch's own errors count as out of memory"),
    Internal(f"{_WRAPPERS}OUTER_SAMPLE", "samplings are not measured, and no block is copied ahead"),
    Internal(f"{_WRAPPERS}PREPARE_SAMPLING", "what samplings take beyond the weights is not measured"),
    Internal(f"{_WRAPPERS}PREDICT_NOISE", "attention is chosen for all steps or none"),
    Internal(f"{_WRAPPERS}CALC_COND_BATCH", "guidance is not computed in turns"),
    Internal("comfy.samplers:CFGGuider.predict_noise", "reports predict no sampling"),
    Internal(f"{_WRAPPERS}DIFFUSION_MODEL", "predictions leave out what other packs wrap around a model's network"),
    Internal("comfy.ldm.lightricks.model:generate_freq_grid_np", "predictions for LTX may disturb what the host keeps"),
    Internal("comfy.ldm.hidream.model:MoEGate", "what a step of HiDream takes is the host's own estimate"),
    Internal(
        "comfy.ldm.lightricks.embeddings_connector:generate_freq_grid_np",
        "predictions for LTX-2 may disturb what the host keeps",
    ),
    Internal("comfy.ldm.modules.attention:optimized_attention", "a training's attention is not named"),
    Internal("comfy.ldm.modules.attention:optimized_attention_masked", "audio encoders are counted as on this machine"),
    Internal("comfy.nested_tensor:NestedTensor", "a video and its sound are not followed together"),
    Internal("comfy.quant_ops:QUANT_ALGOS", "weights are not cast to scaled formats"),
    Internal("comfy.quant_ops:get_layout_class", "some feed-forwards multiply int8_convrot's weights in 8 bits"),
    Internal("comfy.quant_ops:register_layout_class", "some feed-forwards multiply int8_convrot's weights in 8 bits"),
    Internal("comfy.quant_ops:QuantizedTensor", "weights are not cast to scaled formats"),
    Internal("comfy.ops:mixed_precision_ops", "weights are not cast to scaled formats"),
    Internal("comfy_kitchen:use_backend", "mxfp8 and nvfp4 may be refused by a card's kernels"),
    Internal("folder_paths:get_full_path", "estimate does not say what another pack's GGUF files hold"),
    Internal("comfy.utils:PROGRESS_BAR_HOOK", "an estimate beside a prompt moves its progress bar"),
    Internal("execution:PromptExecutor.handle_execution_error", "a prompt that runs out of memory ends without advice"),
    # ---------------------------------------------------------------------------- these are needed
    *_needed((*LOCAL, *TRAINING, "HeadroomCast", *PREDICTING), f"{_WRAPPERS}APPLY_MODEL"),
    *_needed((*PREDICTING, *TRAINING), "comfy.ldm.modules.attention:attention_pytorch"),
    *_needed(
        PREDICTING,
        "comfy.ldm.modules.diffusionmodules.model:vae_attention",
        "comfy.sampler_helpers:convert_cond",
        "comfy.sampler_helpers:prepare_mask",
        "comfy.samplers:calc_cond_batch",
        "comfy.samplers:process_conds",
        f"{_MANAGEMENT}minimum_inference_memory",
    ),
    *_needed((*PREDICTING, *VIDEO_NODES), "comfy.utils:set_attr"),
    *_needed(
        (*VAE, *VIDEO_NODES, *FIT),
        f"{_MANAGEMENT}load_models_gpu",
        "comfy.sd:VAE",
        "comfy.sd:VAE.vae_encode_crop_pixels",
        "comfy.sd:VAE.throw_exception_if_invalid",
    ),
    *_needed(
        (*OFFLOAD, *PREDICTING),
        "comfy.model_patcher:ModelPatcher",
        "comfy.model_patcher:ModelPatcher._load_list",
        "comfy.model_base:BaseModel.apply_model",
        f"{_MANAGEMENT}module_size",
    ),
    *_needed(
        (*OFFLOAD, *FIT),
        "comfy.model_patcher:ModelPatcher.partially_load",
        "comfy.model_patcher:ModelPatcher.loaded_size",
        "comfy.model_patcher:ModelPatcher.unpatch_model",
        f"{_MANAGEMENT}vram_state",
        f"{_MANAGEMENT}VRAMState",
    ),
    *_needed((*CAST, *FIT), "comfy.utils:load_torch_file"),
    *_needed((*CAST, *FIT, "HeadroomVAEDecodeVideo"), "folder_paths:get_output_directory"),
    *_needed(("HeadroomVAEDecodeVideo",), "folder_paths:get_save_image_path", "comfy.cli_args:args"),
    *_needed(("HeadroomVAEEncodeVideo",), "comfy.utils:common_upscale"),
    *_needed(VIDEO_NODES, "folder_paths:get_temp_directory"),
    *_needed(("HeadroomCast", *PREDICTING, *VAE, *VIDEO_NODES), "folder_paths:get_user_directory"),
    *_needed(("HeadroomCast", *COMPARE), "comfy.sample:sample_custom", "comfy.samplers:KSAMPLER"),
    *_needed((*PREDICTING, *COMPARE), "comfy.sample:fix_empty_latent_channels"),
    *_needed((*COMPARE, *FIT, *VAE, *VIDEO_NODES), f"{_MANAGEMENT}soft_empty_cache"),
    *_needed(
        (*CAST, *COMPARE, *FIT, *VAE, *VIDEO_NODES, *TRAINING_ESTIMATE),
        "comfy.utils:ProgressBar",
        f"{_MANAGEMENT}current_loaded_models",
        f"{_MANAGEMENT}free_memory",
    ),
    *_needed(
        (*CAST, *COMPARE, *FIT, *VAE, *VIDEO_NODES, *TRAINING, *TRAINING_ESTIMATE),
        f"{_MANAGEMENT}throw_exception_if_processing_interrupted",
    ),
    *_needed(REPORT, f"{_MANAGEMENT}get_torch_device"),
    *_needed((*VAE, *VIDEO_NODES, *PREDICTING, *COMPARE, *TRAINING), f"{_MANAGEMENT}extra_reserved_memory"),
    *_needed((*VAE, *VIDEO_NODES, *PREDICTING, *COMPARE, *REPORT, *TRAINING), f"{_MANAGEMENT}get_total_memory"),
)


def find(path: str, otherwise: Any = None) -> Any:
    """What a path leads to, or ``otherwise`` where it leads nowhere."""
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return otherwise
    return found


def missing() -> list[Internal]:
    """What this host lacks; nothing on a tested one."""
    return [internal for internal in INTERNALS if not internal.found]


def withheld(lacking: Iterable[Internal]) -> frozenset[str]:
    """Ids of the nodes that cannot be offered."""
    return frozenset(node for internal in lacking for node in internal.nodes)
