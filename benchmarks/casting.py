"""Layerwise casting: error of weights and of models' outputs, memory and time of a conversion, and a chart.

Each section is written to ``casting.md`` as soon as it is done; ``--only`` measures some of them anew.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib
import psutil
import torch
from _harness import ROOT, enter_host, interleaved_cpu_seconds, load_package, median_ratio
from _sections import Report, Section, on_gpu
from torch import Tensor

load_package()
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from _noise import sqnr_db  # noqa: E402

from headroom.memory.render.chart import BACKGROUND, FAINT, INK  # noqa: E402
from headroom.offload import STORAGES, cast_plain  # noqa: E402
from headroom.vae.exact.running.heap import give_back_free_pages  # noqa: E402

MIB = 2**20
SCALED, CONVROT, MXFP8, NVFP4 = "float8_e4m3fn_scaled", "int8_convrot", "mxfp8", "nvfp4"
STORED = (SCALED, CONVROT, MXFP8, NVFP4, "float8_e4m3fn_unscaled", "float8_e5m2_unscaled")
LOADER, NO_SKIP, WITHOUT = "loader's fp8", f"{SCALED}, nothing skipped", "cast layers at zero"
DEVIATIONS = (0.02, 0.01)
SEEDS = (1, 2)
TOKENS, TEXT = 32, 768
TITLES = {
    "weights": "Error of a weight",
    "output": "Error of a model's output",
    "memory": "Memory of a conversion",
    "time": "Time",
    "gpu": "On a GPU",
}
INTRODUCTION = """# Layerwise casting: error, memory, time

Every storage of `HeadroomCast` beside what ComfyUI's `UNETLoader` does with weight_dtype `fp8_e4m3fn`: a plain cast of
every parameter at loading. Errors are signal to noise ratios in dB, 10 log10(Σx² / Σ(x - y)²): 6 dB more is half the
error. Weights are random normal numbers, models are the host's own classes built by its own loader at a smaller width;
the dB rank storages and say nothing of pictures, of which [`painting.md`](painting.md) has those of small trained
models. Times are process CPU seconds at one thread. A float16 or bfloat16 storage is exact or nearly so for such
weights and is left out."""


@dataclass(frozen=True)
class Plan:
    """What the command line asks for.

    Attributes:
        runs: interleaved runs per case.
        families: whose outputs are compared.
        converted: width, double and single blocks of the models whose conversion is watched.
        folder: gets what is written.
    """

    runs: int
    families: Sequence[Family]
    converted: Mapping[str, Sequence[int]]
    folder: Path


# ------------------------------------------------------------------------------------------------------- models

GATES = r"(mod|adaln|time_projection)\w*(\.\w+)*\.bias$|scale_shift_table$|\.modulation$"


@dataclass(frozen=True)
class Family:
    """A model: the host's configuration class, what it is built with, and what it takes.

    Attributes:
        kind: of ``comfy.supported_models``.
        settings: of the network, as the host's detection would find them.
        latent: shape without the batch.
        text: width of the text's features.
        pooled: width of the pooled text.
        gates: a pattern of the entries that say how much a block adds; empty: blocks always add all.
        gate: their standard deviation, where blocks are to dominate.
    """

    name: str
    kind: str
    settings: Mapping[str, Any]
    latent: tuple[int, ...]
    text: int = TEXT
    pooled: int = 768
    gates: str = GATES
    gate: float = 0.5

    def configuration(self) -> Any:
        return getattr(importlib.import_module("comfy.supported_models"), self.kind)(dict(self.settings))

    def shapes(self) -> dict[str, Tensor]:
        """The entries of its file, without memory."""
        configuration = self.configuration()
        configuration.set_inference_dtype(torch.float32, None)
        state: dict[str, Tensor] = configuration.get_model({}, "", device="meta").diffusion_model.state_dict()
        return state


def flux(width: int, depth: int, singles: int, *without: str, **others: Any) -> dict[str, Any]:
    """Flux's settings and those of its kin, which are ``without`` some and have others."""
    settings = {
        "image_model": "flux", "in_channels": 16, "out_channels": 16, "context_in_dim": TEXT, "vec_in_dim": 768,
        "hidden_size": width, "mlp_ratio": 4.0, "num_heads": width // 128, "depth": depth,
        "depth_single_blocks": singles, "axes_dim": [16, 56, 56], "theta": 10000, "patch_size": 2, "qkv_bias": True,
        "guidance_embed": True, "txt_ids_dims": [],
    } | others  # fmt: skip
    return {name: value for name, value in settings.items() if name not in without}


def unet(width: int, multipliers: Sequence[int], depths: Sequence[int], **others: Any) -> dict[str, Any]:
    """Two residual blocks per level; ``depths`` of the transformers in each level, from the widest picture down."""
    return {
        "image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": width, "channel_mult": multipliers,
        "num_res_blocks": [2] * len(depths), "use_spatial_transformer": True, "legacy": False, "context_dim": TEXT,
        "transformer_depth": [depth for depth in depths for _ in range(2)], "adm_in_channels": None,
        "transformer_depth_output": [depth for depth in depths for _ in range(3)],
        "transformer_depth_middle": depths[-1] or depths[-2],
    } | others  # fmt: skip


SDXL = {"num_classes": "sequential", "adm_in_channels": 2816, "use_linear_in_transformer": True}
FAMILIES = (
    Family("Flux", "Flux", flux(768, 2, 4), (16, 16, 16)),
    Family("SD3", "SD3", {
        "in_channels": 16, "depth": 8, "input_size": None, "adm_in_channels": 768, "pos_embed_max_size": 32,
        "num_patches": 1024, "qk_norm": "rms",
        "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": TEXT, "out_features": 512}},
    }, (16, 16, 16)),
    Family("Wan 2.1", "WAN21_T2V", {
        "image_model": "wan2.1", "dim": 768, "ffn_dim": 3072, "text_dim": TEXT, "num_heads": 6, "num_layers": 8,
    }, (16, 2, 16, 16)),
    Family("SD1.5", "SD15", unet(128, [1, 2, 4, 4], [1, 1, 1, 0]), (4, 32, 32), gates=""),
    Family("SDXL", "SDXL", unet(128, [1, 2, 4], [0, 1, 4], **SDXL), (4, 32, 32), pooled=1280, gates=""),
    Family("Qwen-Image", "QwenImage", {
        "image_model": "qwen_image", "num_layers": 4, "num_attention_heads": 6, "joint_attention_dim": TEXT,
    }, (16, 1, 16, 16)),
    Family("Z-Image", "ZImage", {
        "image_model": "lumina2", "in_channels": 16, "dim": 768, "cap_feat_dim": TEXT, "n_layers": 8, "qk_norm": True,
        "n_heads": 6, "n_kv_heads": 6, "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512], "rope_theta": 256.0,
        "ffn_dim_multiplier": 8 / 3, "z_image_modulation": True, "time_scale": 1000.0, "pad_tokens_multiple": 32,
    }, (16, 16, 16)),
    Family("LTX-Video", "LTXV", {
        "image_model": "ltxv", "num_layers": 8, "attention_head_dim": 96, "num_attention_heads": 8,
        "cross_attention_dim": 768, "caption_channels": TEXT,
    }, (128, 2, 8, 8)),
    Family("HunyuanVideo", "HunyuanVideo", flux(
        512, 6, 12, "txt_ids_dims", image_model="hunyuan_video", patch_size=[1, 2, 2], theta=256, meanflow=False,
        meanflow_sum=False, byt5=False, use_cond_type_embedding=False, vision_in_dim=None,
    ), (16, 2, 16, 16)),
    Family("Chroma", "Chroma", flux(
        768, 3, 6, "guidance_embed", image_model="chroma", vec_in_dim=None, in_channels=64, out_channels=64, in_dim=64,
        out_dim=768, hidden_dim=768, n_layers=5,
    ), (16, 16, 16), gates=r"guidance_layer\.out_proj\.bias$"),
    Family("Flux.2", "Flux2", flux(
        512, 4, 12, image_model="flux2", in_channels=128, out_channels=128, vec_in_dim=None, mlp_ratio=3.0,
        axes_dim=[32] * 4, theta=2000, patch_size=1, qkv_bias=False, global_modulation=True, mlp_silu_act=True,
        ops_bias=False, txt_ids_dims=[3],
    ), (128, 16, 16), gates=r"modulation\w*\.lin\.weight$", gate=2.0),  # it has no biases
)  # fmt: skip


def drawn(family: Family, deviation: float, *, gated: bool, seed: int = 0) -> dict[str, Tensor]:
    """bfloat16 weights: matrices and kernels of one standard deviation, biases of 0.01, scales of norms 1."""
    rng = torch.Generator().manual_seed(seed)
    weights = {}
    for key, blank in family.shapes().items():
        spread = deviation if blank.ndim > 1 else 0.01
        if gated and family.gates and re.search(family.gates, key, re.IGNORECASE):
            spread = family.gate
        is_scale = blank.ndim < 2 and not key.endswith("bias")
        values = torch.ones(blank.shape) if is_scale else torch.randn(blank.shape, generator=rng) * spread
        weights[key] = values.to(torch.bfloat16)
    return weights


def load(family: Family, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.bfloat16) -> Any:
    """The MODEL as the host's loader makes it; its detection, which goes by real widths, is told the family."""
    detection = importlib.import_module("comfy.model_detection")
    with mock.patch.object(detection, "model_config_from_unet", return_value=family.configuration()):
        return importlib.import_module("comfy.sd").load_diffusion_model_state_dict(dict(weights), {"dtype": dtype})


def load_filled(family: Family, deviation: float, dtype: torch.dtype) -> Any:
    """A MODEL whose weights are drawn where they stay, for models that are held only once."""
    model = load(family, {}, dtype)
    for parameter in model.model.diffusion_model.parameters():
        values = torch.empty(parameter.shape, dtype=torch.bfloat16, device=model.load_device)
        parameter.data.copy_(values.normal_(0, deviation))
    return model


def cast(model: Any, storage: str, skip: str = "auto", cache_file: str = "") -> tuple[Any, Any]:
    from headroom.host.casting.cast import CastSettings, cast_model

    return cast_model(model, CastSettings(storage, skip=skip, cache_file=cache_file))


def inputs(family: Family, model: Any, seed: int) -> dict[str, Any]:
    """What the host's sampler would hand to ``apply_model``."""
    rng, device = torch.Generator().manual_seed(seed), model.load_device
    x = torch.randn(1, *family.latent, generator=rng).to(device)
    text = torch.randn(1, TOKENS, family.text, generator=rng) * 0.5
    pooled = torch.randn(1, family.pooled, generator=rng) * 0.5
    mask = torch.ones(1, TOKENS, dtype=torch.long)
    known = {"noise": x, "cross_attn": text, "pooled_output": pooled, "attention_mask": mask, "guidance": 3.5}
    conditions = model.model.extra_conds(device=device, **known)
    found = {name: value.process_cond(batch_size=1).cond for name, value in conditions.items()}
    found = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in found.items()}
    return {"x": x, "t": torch.full((1,), 0.7, device=device), "transformer_options": {}, **found}


def ready(model: Any) -> Any:
    importlib.import_module("comfy.model_management").load_models_gpu([model])
    return model.model


def outputs(family: Family, model: Any) -> list[Tensor]:
    """What the network itself says for each seed; ``apply_model`` would add its input."""
    found: list[Tensor] = []
    network = ready(model).diffusion_model
    hook = network.register_forward_hook(lambda module, arguments, output: found.append(output.float()))
    for seed in SEEDS:
        model.model.apply_model(**inputs(family, model, seed))
    hook.remove()
    return found


# ------------------------------------------------------------------------------------------------------ weights


def normal(deviation: float) -> Callable[[torch.Generator], Tensor]:
    return lambda rng: torch.randn(1024, 1024, generator=rng) * deviation


def student(rng: torch.Generator) -> Tensor:
    """Three degrees of freedom: heavy tails."""
    values = torch.randn(1024, 1024, generator=rng) / torch.randn(3, 1024, 1024, generator=rng).norm(dim=0)
    return values * (0.01 / values.std())


def outliers(rng: torch.Generator) -> Tensor:
    values = torch.randn(1024, 1024, generator=rng) * 0.02
    return torch.where(torch.rand(1024, 1024, generator=rng) < 1e-4, values.sign() * 2.0, values)


CURVE = (0.002, 0.005, 0.01, 0.02, 0.05)
DISTRIBUTIONS = {
    **{f"normal {deviation}": normal(deviation) for deviation in CURVE},
    "t3, 0.01": student,
    "normal 0.02, 1e-4 outliers of 100 x": outliers,
}


def weight_errors() -> tuple[dict[str, list[float]], dict[str, float]]:
    """By storage: dB for each distribution, and bytes per weight."""
    from headroom.host.casting.quantised import quantise, stored_bytes

    errors: dict[str, list[float]] = {name: [] for name in (LOADER, *STORED)}
    sizes = {LOADER: 1.0}
    rng = torch.Generator().manual_seed(0)
    for weight in (draw(rng).to(torch.bfloat16) for draw in DISTRIBUTIONS.values()):
        errors[LOADER].append(sqnr_db(weight, weight.to(torch.float8_e4m3fn).float()))
        for name in STORED:
            storage = STORAGES[name]
            if storage.scaled:
                stored, error = quantise(weight, storage, torch.float32)
                size = stored_bytes(stored)
            else:
                stored = cast_plain(weight, storage.plain_dtype)
                error, size = sqnr_db(weight, stored.float()), stored.nbytes
            errors[name].append(error)
            sizes[name] = size / weight.numel()
    return errors, sizes


def weights_section(plan: Plan) -> Section:
    section = Section()
    errors, sizes = weight_errors()
    section.least(f"{SCALED}: worst of normal weights", 31, min(errors[SCALED][: len(CURVE)]), "dB")
    section.least(f"{CONVROT}: worst of all weights", 41, min(errors[CONVROT]), "dB")
    section.least(f"{NVFP4}: worst of all weights", 20, min(errors[NVFP4]), "dB")
    section.most(f"{NVFP4}: bytes / bfloat16's", 0.32, sizes[NVFP4] / 2)
    rows = [(name, *(f"{db:.1f}" for db in found), f"{sizes[name]:.3f}") for name, found in errors.items()]
    section.table(("storage", *DISTRIBUTIONS, "bytes per weight"), rows)
    section.parts.append("Matrices of 1024 x 1024 in bfloat16; dB. A number after a name is a standard deviation.")
    return section


# ------------------------------------------------------------------------------------------------------- output

ABOUT_OUTPUT = """One forward pass, the mean dB over two inputs; reference: the same bfloat16 weights computed in
float32, as the host does on a CPU. "cast layers at zero" is the model whose cast layers hold zeros: the more dB, the
less the output depends on them. Size = bytes over those of bfloat16. Convolutions of UNets get no scale, whatever the
storage: the host has no scaled ones."""
ABOUT_ALIKE = """### All matrices alike

Every matrix and kernel has the same standard deviation, biases 0.01, scales of norms are 1. What a transformer's blocks
add is then small, and most of the output is that of its first and last layers, which the default skip list keeps and
the loader does not: high figures are the list's worth. Nothing gates the blocks of UNets."""
ABOUT_GATED = """### Blocks that dominate

The same, but what gates a transformer's blocks (biases and tables of modulation; in Flux.2 its shared matrices) has a
standard deviation of 0.5 (Flux.2: 2): blocks are most of the output, as in trained models. These figures are the
storage's worth."""


def decibels(exact: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    return statistics.mean(sqnr_db(x, y) for x, y in zip(exact, found))


@dataclass(frozen=True)
class Found:
    """Of one drawn model: dB and relative size by name of the way it is stored."""

    errors: Mapping[str, float]
    sizes: Mapping[str, float]
    weights: int

    def gain(self, name: str) -> float:
        """dB over the loader's."""
        return self.errors[name] - self.errors[LOADER]


def compare(family: Family, deviation: float, *, gated: bool) -> Found:
    weights = drawn(family, deviation, gated=gated)
    original = load(family, weights)
    assert original.model.get_dtype_inference() == torch.float32
    exact = outputs(family, original)
    bytes_before = original.model_size()
    loaded = load(family, weights, torch.float8_e4m3fn)
    errors = {LOADER: decibels(exact, outputs(family, loaded))}
    sizes = {LOADER: loaded.model_size() / bytes_before}
    for name, storage, skip in [(name, name, "auto") for name in STORED] + [(NO_SKIP, SCALED, "")]:
        model, report = cast(original, storage, skip)
        errors[name] = decibels(exact, outputs(family, model))
        sizes[name] = model.model_size() / bytes_before
        if name == SCALED:
            layers = {f"{done.layer.name}.weight" for done in report.cast}
    blank = {key: value * (key not in layers) for key, value in weights.items()}
    errors[WITHOUT] = decibels(exact, outputs(family, load(family, blank)))
    importlib.import_module("comfy.model_management").unload_all_models()
    return Found(errors, sizes, sum(value.numel() for value in weights.values()))


def output_section(plan: Plan) -> Section:
    section, dominated = Section(), {}
    section.parts.append(ABOUT_OUTPUT)
    for gated, about in ((False, ABOUT_ALIKE), (True, ABOUT_GATED)):
        families = [family for family in plan.families if family.gates or not gated]
        found = {family.name: by_deviation(family, gated=gated) for family in families}
        dominated |= found
        judge(section, found, gated=gated)
        section.parts.append(about)
        section.table(OUTPUT_HEADER, list(output_rows(found)))
    sizes = {name: found[0.02].sizes[SCALED] for name, found in dominated.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    section.most(f"{SCALED}: size, largest of all ({largest})", 0.55, sizes[largest])
    draw_chart(plan.folder / "casting.png", weight_errors()[0], dominated)
    section.parts.append("![Error of weights and of outputs](casting.png)")
    return section


def by_deviation(family: Family, *, gated: bool) -> dict[float, Found]:
    found = {}
    for deviation in DEVIATIONS:
        found[deviation] = compare(family, deviation, gated=gated)
        errors = (f"{name} {db:.1f}" for name, db in found[deviation].errors.items())
        print(family.name, deviation, "gated" if gated else "alike", *errors, flush=True)
    return found


def judge(section: Section, found: Mapping[str, Mapping[float, Found]], *, gated: bool) -> None:
    how = "blocks dominate" if gated else "all alike"
    for deviation, scaled, rotated in () if gated else ((0.02, 6, 13), (0.01, 15, 22)):
        what = f"Flux, {how}, {deviation}: dB over the loader's"
        section.least(f"{what}, {SCALED}", scaled, found["Flux"][deviation].gain(SCALED), "dB")
        section.least(f"{what}, {CONVROT}", rotated, found["Flux"][deviation].gain(CONVROT), "dB")
    for name, models in found.items():
        if name != "Flux" or gated:
            least = min(model.gain(SCALED) for model in models.values())
            section.least(f"{name}, {how}, the lesser of both: dB over the loader's, {SCALED}", 3, least, "dB")


OUTPUT_COLUMNS = (WITHOUT, LOADER, *STORED, NO_SKIP)
OUTPUT_HEADER = ("model", "M weights", "deviation", *OUTPUT_COLUMNS, "size, 8 bits", f"size, {NVFP4}")


def output_rows(found: Mapping[str, Mapping[float, Found]]) -> Iterator[tuple[object, ...]]:
    for name, models in found.items():
        for deviation, model in models.items():
            errors = (f"{model.errors[column]:.1f}" for column in OUTPUT_COLUMNS)
            sizes = (f"{model.sizes[storage]:.3f}x" for storage in (SCALED, NVFP4))
            yield name, f"{model.weights / 1e6:.0f}", deviation, *errors, *sizes


# ------------------------------------------------------------------------------------------------------- memory


class Watch(threading.Thread):
    """Highest resident and anonymous bytes of this process while it runs, looked at every 5 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._done = threading.Event()
        self.before = self.highest = resident()

    def run(self) -> None:
        while not self._done.wait(0.005):
            self.highest = tuple(map(max, self.highest, resident()))

    def growth(self) -> list[int]:
        """Resident and anonymous, at most; then ends."""
        self._done.set()
        self.join()
        return [high - low for high, low in zip(self.highest, self.before)]


def resident() -> tuple[int, ...]:
    """All of this process, and what no file backs, which the system cannot drop."""
    info = psutil.Process().memory_info()
    return info.rss, info.rss - getattr(info, "shared", 0)


def convert_here(storage: str, cache_file: str, *sizes: int) -> dict[str, Any]:
    """One conversion in this process: bytes that it grew by while it converted, and after."""
    original = load_filled(Family("", "Flux", flux(*sizes), ()), 0.02, torch.bfloat16)
    cast(load_filled(Family("", "Flux", flux(128, 1, 1), ()), 0.02, torch.bfloat16), storage)
    gc.collect()
    give_back_free_pages()  # else memory kept from loading would hide growth
    watch = Watch()
    watch.start()
    start = time.process_time()
    model, report = cast(original, storage, cache_file=cache_file)
    seconds = time.process_time() - start
    most = watch.growth()
    gc.collect()
    after = [now - then for now, then in zip(resident(), watch.before)]
    largest = max(done.layer.weights for done in report.cast)
    found = {"original": original.model_size(), "size": model.model_size(), "layer": 4 * largest}
    return {"most": most, "after": after, "seconds": seconds, **found}


def in_fresh_process(storage: str, cache_file: str, sizes: Sequence[int]) -> dict[str, Any]:
    order = json.dumps([storage, cache_file, *sizes])
    command = [sys.executable, str(Path(__file__).resolve()), "--convert", order]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory_section(plan: Plan) -> Section:
    section, rows, cached = Section(), [], []
    for name, sizes in plan.converted.items():
        for storage in (SCALED, CONVROT, MXFP8, NVFP4):
            found = in_fresh_process(storage, "", sizes)
            original, layer, (growth, _) = found["original"], found["layer"], found["most"]
            goal = f"{name}, {storage}: growth of resident memory, less one layer in float32 / original"
            section.most(goal, 0.65, (growth - layer) / original)
            ratios = (f"{part / original:.2f}x" for part in (growth, growth - layer, found["after"][0], found["size"]))
            mib = (f"{part / MIB:.0f}" for part in (original, layer, growth))
            rows.append((name, storage, *mib, *ratios, f"{found['seconds']:.0f}"))
            print(*rows[-1], flush=True)
        for storage in (SCALED, CONVROT):
            found = in_fresh_process(storage, "bench", sizes)
            mib = (f"{part / MIB:.0f}" for part in (*found["most"], *found["after"]))
            cached.append((name, storage, *mib, f"{found['most'][1] / found['layer']:.1f}", f"{found['seconds']:.0f}"))
            print(*cached[-1], flush=True)
    section.table(MEMORY_HEADER, rows)
    section.parts.append("### With `cache_file`")
    section.table(CACHED_HEADER, cached)
    section.parts.append(ABOUT_MEMORY)
    return section


MEMORY_HEADER = (
    "model", "storage", "original, MiB", "largest layer in float32, MiB", "growth at most, MiB", "/ original",
    "less one layer / original", "after / original", "converted model / original", "CPU seconds",
)  # fmt: skip
CACHED_HEADER = (
    "model", "storage", "resident growth at most, MiB", "anonymous growth at most, MiB", "resident after, MiB",
    "anonymous after, MiB", "anonymous at most / largest layer in float32", "CPU seconds",
)  # fmt: skip
ABOUT_MEMORY = """Flux of 1.1 G weights in bfloat16, all anonymous memory: with 12 blocks of width 2048 or 48 of 1024.
Each conversion in a fresh process; growth is what the resident set, looked at every 5 ms, went over what it was before.
Anonymous memory is what no file backs: the system can drop a file's pages, but not those."""


# --------------------------------------------------------------------------------------------------------- time


def time_section(plan: Plan) -> Section:
    section, family = Section(), plan.families[0]
    weights = drawn(family, 0.02, gated=True)
    original = load(family, weights)
    conversions = {name: partial(cast, original, name) for name in STORED}
    converted = interleaved_cpu_seconds(conversions, plan.runs, warm_ups=1)
    models = {"bfloat16": original, LOADER: load(family, weights, torch.float8_e4m3fn)}
    models |= {name: cast(original, name)[0] for name in STORED}
    count = sum(done.layer.weights for done in cast(original, SCALED)[1].cast)
    steps = [step_seconds(family, models, side, plan.runs) for side in (32, 64)]
    rows = []
    for name in models:
        seconds = f"{statistics.median(converted[name]) / count * 1e9:.1f}" if name in converted else ""
        rows.append((name, seconds, *(f"{median_ratio(step, name, 'bfloat16'):.2f}x" for step in steps)))
    header = ("CPU seconds per G weights", "step of 288 tokens / bfloat16", "step of 1056 tokens / bfloat16")
    section.table(("storage", *header), rows)
    of = ", ".join(f"{statistics.median(step['bfloat16']):.2f} s" for step in steps)
    section.parts.append(f"{family.name} as above; the conversion's quality report included. bfloat16 steps: {of}.")
    return section


def step_seconds(family: Family, models: Mapping[str, Any], side: int, runs: int) -> dict[str, list[float]]:
    wide = Family(family.name, family.kind, family.settings, (16, side, side))
    works = {name: partial(ready(model).apply_model, **inputs(wide, model, 1)) for name, model in models.items()}
    return interleaved_cpu_seconds(works, runs, warm_ups=1)


# ---------------------------------------------------------------------------------------------------------- GPU

REAL = (
    Family(
        "SDXL, 1024 px", "SDXL", unet(320, [1, 2, 4], [0, 2, 10], **SDXL, context_dim=2048), (4, 128, 128), 2048, 1280
    ),
    Family("Flux, 1024 px", "Flux", flux(3072, 19, 38, context_in_dim=4096), (16, 128, 128), 4096),
)


def gpu_section(plan: Plan) -> Section:
    """Models of real size with random weights: a step, and all that torch's allocator held during it."""
    section, rows = Section(), []
    for family in REAL:
        found: dict[str, tuple[float, int]] = {}
        original = load_filled(family, 0.02, torch.bfloat16)
        found["bfloat16"] = step_on_gpu(family, original, plan.runs)
        for name in STORED:
            found[name] = step_on_gpu(family, cast(original, name)[0], plan.runs)
        del original
        found[LOADER] = step_on_gpu(family, load_filled(family, 0.02, torch.float8_e4m3fn), plan.runs)
        first, highest = found["bfloat16"]
        for name, (seconds, peak) in found.items():
            times = f"{1e3 * seconds:.1f}", f"{seconds / first:.2f}x"
            rows.append((family.name, name, *times, f"{peak / MIB:.0f}", f"{peak / highest:.2f}x"))
            print(*rows[-1], flush=True)
    section.parts.append(f"{torch.cuda.get_device_name()}, batch 1, all weights resident, without dynamic VRAM.")
    section.table(("model", "storage", "ms per step", "/ bfloat16", "peak MiB", "/ bfloat16"), rows)
    return section


def step_on_gpu(family: Family, model: Any, runs: int) -> tuple[float, int]:
    """Seconds, and bytes of weights and activations together."""
    seconds, peak = on_gpu(partial(ready(model).apply_model, **inputs(family, model, 1)), runs)
    held = torch.cuda.memory_allocated()
    importlib.import_module("comfy.model_management").unload_all_models()
    return seconds, peak + held


# -------------------------------------------------------------------------------------------------------- chart

INKS = dict(zip((LOADER, *STORED), ("#e6865a", "#5aa9e6", "#7bd389", "#c792ea", "#f2c14e", "#8b919c", "#9a7d5f")))


def draw_chart(path: Path, curves: Mapping[str, list[float]], found: Mapping[str, Mapping[float, Found]]) -> None:
    inks = dict.fromkeys(("text.color", "xtick.color", "ytick.color", "axes.labelcolor"), INK)
    with plt.rc_context({**inks, "axes.edgecolor": FAINT, "figure.facecolor": BACKGROUND, "font.size": 11}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(14, 5.5), width_ratios=(2, 3), layout="constrained")
        for axes in (left, right):
            axes.set_facecolor(BACKGROUND)
            axes.spines[["top", "right"]].set_visible(False)
        draw_curves(left, curves)
        draw_bars(right, {name: models[0.02] for name, models in found.items()})
        figure.savefig(path, dpi=100)
        plt.close(figure)


def draw_curves(axes: plt.Axes, curves: Mapping[str, list[float]]) -> None:
    """One line for storages that differ by less than 0.2 dB."""
    together: dict[str, list[str]] = {}
    for name, errors in curves.items():
        near = (first for first in together if max(abs(x - y) for x, y in zip(errors, curves[first])) < 0.2)
        together.setdefault(next(near, name), []).append(name)
    for first, names in together.items():
        style = {"marker": "o", "markersize": 4, "color": INKS[first], "label": ", ".join(names)}
        axes.plot(CURVE, curves[first][: len(CURVE)], **style)
    axes.set(xscale="log", ylim=(0, 60), xlabel="standard deviation of the weights", ylabel="signal to noise, dB")
    axes.set_xticks(CURVE, [f"{deviation:g}" for deviation in CURVE])
    axes.minorticks_off()
    axes.set_title("A weight, once stored (more is better)", loc="left")
    axes.legend(loc="upper left", fontsize=9.5, frameon=False)


def draw_bars(axes: plt.Axes, found: Mapping[str, Found]) -> None:
    shown = (LOADER, SCALED, CONVROT)
    for index, name in enumerate(shown):
        places = [place + (index - 1) * 0.27 for place in range(len(found))]
        axes.bar(places, [model.errors[name] for model in found.values()], 0.25, color=INKS[name], label=name)
    axes.set_xticks(range(len(found)), list(found), rotation=25, ha="right")
    axes.set_ylabel("signal to noise, dB")
    axes.set_ylim(0, 1.2 * max(model.errors[CONVROT] for model in found.values()))
    axes.set_title("A model's output, weights of 0.02, blocks that dominate", loc="left")
    axes.legend(loc="upper left", ncols=3, frameon=False)


# ------------------------------------------------------------------------------------------------------ command

SECTIONS: dict[str, Callable[[Plan], Section]] = {
    "weights": weights_section,
    "output": output_section,
    "memory": memory_section,
    "time": time_section,
    "gpu": gpu_section,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs per case (default 5)")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(SECTIONS)} (default: all that can run here)")
    parser.add_argument("--quick", action="store_true", help="small, into output/: to see whether it runs")
    parser.add_argument("--convert", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args()
    devices = [name for name in SECTIONS if name != "gpu" or torch.cuda.is_available()]
    options.only = options.only.split(",") if options.only else devices
    if unknown := [name for name in options.only if name not in SECTIONS]:
        parser.error(f"unknown section: {', '.join(unknown)}")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    if options.quick:
        folder = ROOT / "output" / "bench"
        folder.mkdir(parents=True, exist_ok=True)
        return Plan(1, FAMILIES[:2], {"narrow layers": (512, 4, 8)}, folder)
    converted = {"wide layers": (2048, 4, 8), "narrow layers": (1024, 16, 32)}
    return Plan(options.runs, FAMILIES, converted, Path(__file__).resolve().parent)


def main() -> None:
    options = arguments()
    gpu = options.only == ["gpu"]
    logging.disable(logging.WARNING)  # the host's, about weights that are drawn afterwards
    enter_host("--disable-dynamic-vram" if gpu else "--cpu")
    torch.set_num_threads(torch.get_num_threads() if gpu else 1)
    plan = plan_of(options)
    report = Report(plan.folder / "casting.md", INTRODUCTION, TITLES)
    with torch.no_grad():
        if options.convert:
            print(json.dumps(convert_here(*json.loads(options.convert))))
            return
        for name in options.only:
            if name == "gpu" and not gpu:  # the host takes either the CPU or the GPU, for good
                again = [sys.executable, str(Path(__file__).resolve()), "--only", "gpu", "--runs", str(plan.runs)]
                subprocess.run([*again, *(["--quick"] if options.quick else [])], check=True)
                continue
            report.measure(name, partial(SECTIONS[name], plan), plan.runs)


if __name__ == "__main__":
    main()
