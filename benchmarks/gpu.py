"""Models in their published size on a GPU: predictions, streamed weights, training and VAEs as they are there.

Weights are random and made here, so that nothing is downloaded. Each section is written to ``gpu.md`` as soon as it is
done; ``--only`` measures some of them anew. What the card or its machine has no room for is left out and named.
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import torch
from _harness import ROOT, enter_host, load_package
from _sections import Report, Section, rows_of, sections_of
from torch import Tensor

load_package()

GB, MIB = 2**30, 2**20
TITLES = {
    "sampling": "Sampling: what a step takes",
    "streaming": "Weights that are streamed",
    "training": "Training",
    "vae": "VAEs",
}
INTRODUCTION = """# On a GPU, in published sizes

Models in the sizes of the published ones with random weights, in ComfyUI 0.30.0 in process. Bytes are those that
torch's allocator counts, GB and MiB of 2^30 and 2^20. A card with more memory than is needed takes no other way than a
smaller one where a budget is given; without one nothing here says how a smaller card does."""
TOKENS = 256
SHARES = (0.5, 0.2)  # of the weights
PLANS = ("every block", "every k-th block", "attention", "feed-forward")
OWN, BUDGET, IN_RAM = "depth 1", "budget, half", "every block, in RAM"
BESIDE = 0.6  # of the machine's memory that a model may take


@dataclass(frozen=True)
class Wish:
    """Entries of a model in a dtype; a latent, the text's width, and that of what is pooled."""

    entries: str
    dtype: torch.dtype
    latent: tuple[int, ...]
    text: int
    pooled: int = 0


WISHES = {
    "SD1.5, 512 px": Wish("sd15_unet", torch.float16, (1, 4, 64, 64), 768),
    "SD1.5, 1024 px": Wish("sd15_unet", torch.float16, (1, 4, 128, 128), 768),
    "SDXL, 1024 px": Wish("sdxl_unet", torch.float16, (1, 4, 128, 128), 2048, 1280),
    "Flux.1, 1024 px": Wish("flux", torch.bfloat16, (1, 16, 128, 128), 4096, 768),
    "Wan 14B, 832 x 480, 33 frames": Wish("wan14b", torch.float16, (1, 16, 9, 60, 104), 4096),
}
QUICK = {"a small Flux, 256 px": Wish("small_flux", torch.bfloat16, (1, 16, 32, 32), 4096, 768)}
STREAMED = ("SDXL, 1024 px", "Flux.1, 1024 px", "a small Flux, 256 px")
TRAINED = ("SD1.5, 512 px", "SDXL, 1024 px", "Flux.1, 1024 px", "a small Flux, 256 px")


@dataclass(frozen=True)
class Coded:
    """A VAE's entries, its dtype here and latent; the shares of what a whole decode takes that are asked for."""

    entries: str
    dtype: torch.dtype
    latent: tuple[int, ...]
    shares: tuple[float, ...] = (0.75, 0.5, 0.25)


CODED = {
    "SD, 1024 px": Coded("sd_vae", torch.bfloat16, (1, 4, 128, 128)),
    "SD, 2048 px": Coded("sd_vae", torch.bfloat16, (1, 4, 256, 256)),
    "SD, 1024 px, float32": Coded("sd_vae", torch.float32, (1, 4, 128, 128)),
    "Flux, 1536 px": Coded("flux_vae", torch.bfloat16, (1, 16, 192, 192)),
    "Wan 2.1, 832 x 480, 33 frames": Coded("wan_vae", torch.bfloat16, (1, 16, 9, 60, 104), (0.75, 0.4)),
}
QUICK_CODED = {"SD, 128 px": Coded("sd_vae", torch.float32, (1, 4, 16, 16))}


@dataclass(frozen=True)
class Plan:
    """What the command line asks for."""

    runs: int
    models: Mapping[str, Wish]
    vaes: Mapping[str, Coded]
    folder: Path

    def kept(self, section: str) -> list[list[str]]:
        """A section's rows of models that are not asked for."""
        there = self.folder / "gpu.md"
        text = sections_of(there.read_text("utf-8")).get(TITLES[section], "") if there.is_file() else ""
        return [row for row in rows_of(text) if row[0] not in self.models and row[0] not in self.vaes]


# ------------------------------------------------------------------------------------------------------- the models


def entries_of(name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model's weights."""
    from headroom.tests.host import full_size

    if name == "sd15_unet":
        return {key: shape for key, shape in full_size.sd15().items() if key.startswith("model.diffusion_model.")}
    if name == "small_flux":
        flux = full_size.host("comfy.ldm.flux.model").Flux
        small = full_size.FLUX | {"hidden_size": 512, "num_heads": 4, "depth": 3, "depth_single_blocks": 6}
        return full_size.shapes(
            flux(image_model="flux", guidance_embed=True, txt_ids_dims=[], **small, **full_size.blank())
        )
    if name.endswith("_vae") and name != "wan_vae":
        return full_size.autoencoder({"sd_vae": 4, "flux_vae": 16}[name])
    found: dict[str, tuple[int, ...]] = getattr(full_size, name)()
    return found


def state_of(name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights that keep the size of what they are given about; the card draws them, since a CPU would take minutes."""
    generator = torch.Generator("cuda").manual_seed(5)
    state = {}
    for key, shape in entries_of(name).items():
        norm = "norm" in key and not key.endswith("bias")
        scale = 0.7 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.1
        drawn = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).mul_(scale)
        state[key] = drawn.add_(1.0 if norm and len(shape) == 1 else 0.0).to(dtype).cpu()
    torch.cuda.empty_cache()
    return state


def is_too_large(name: str, dtype: torch.dtype) -> bool:
    size = dtype.itemsize * sum(math.prod(shape) for shape in entries_of(name).values())
    return size > BESIDE * psutil.virtual_memory().available or size > 0.8 * torch.cuda.mem_get_info()[1]


def given(model: Any, disable_dynamic: bool = False) -> Any:
    """A loader of what is loaded."""
    return model


@contextmanager
def loaded(wish: Wish) -> Iterator[Any]:
    """A MODEL as the host's loader hands it out; nothing of it is there afterwards."""
    import comfy.sd

    state = state_of(wish.entries, wish.dtype)
    model = comfy.sd.load_diffusion_model_state_dict(state)
    model.cached_patcher_init = (partial(given, model), ())
    del state
    try:
        yield model
    finally:
        del model
        unloaded()


def unloaded() -> None:
    """Takes everything off the card."""
    import comfy.model_management

    comfy.model_management.unload_all_models()
    gc.collect()
    comfy.model_management.soft_empty_cache()


def text_of(wish: Wish) -> list[Any]:
    """CONDITIONING."""
    drawn = torch.randn(1, TOKENS, wish.text, generator=torch.Generator().manual_seed(2))
    return [[drawn, {"pooled_output": torch.ones(1, wish.pooled)} if wish.pooled else {}]]


# ----------------------------------------------------------------------------------------------------- its sampling


def sample(model: Any, wish: Wish, steps: int, seen: Callable[..., None] | None = None) -> Tensor:
    import comfy.sample

    noise = torch.randn(wish.latent, generator=torch.Generator().manual_seed(3))
    text = text_of(wish)
    found: Tensor = comfy.sample.sample(
        model, noise, steps, 1.0, "euler", "simple", text, text, torch.zeros(wish.latent), callback=seen,
        disable_pbar=True, seed=1,
    )  # fmt: skip
    return found


class Marks(list[Any]):
    """Moments of the card."""

    def add(self, *_: Any) -> None:
        self.append(torch.cuda.Event(enable_timing=True))
        self[-1].record()

    def seconds(self, first: int) -> list[float]:
        """Between one moment and the next, from the given one on."""
        torch.cuda.synchronize()
        return [one.elapsed_time(other) / 1000 for one, other in pairwise(self[first:])]


def step_seconds(model: Any, wish: Wish, steps: int = 5) -> list[float]:
    """Of the steps of a sampling but the first two, in which is loaded and measured."""
    marks = Marks()
    sample(model, wish, steps, marks.add)
    return marks.seconds(1)


def peak_of(work: Callable[[], object]) -> int:
    """Bytes allocated at most, over what was there."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def sampling(plan: Plan) -> Section:
    """What a Memory Report predicts of a step, beside what it measures."""
    from headroom.host.attention.backend import apply_attention
    from headroom.host.measure.runs import LOG
    from headroom.host.planning.rows import ask

    section, rows, worst = Section(), plan.kept("sampling"), 0.0
    for name, wish in plan.models.items():
        with loaded(wish) as model:
            chosen = apply_attention(model, backend="auto")
            sample(chosen, wish, 2)  # libraries load
            sample(chosen, wish, 2)
            row = LOG.rows("", "")[-1]
            ask(row)
            assert row.live is not None
            assert row.predicted is not None
            error = max(row.live / row.predicted.activations, row.predicted.live / row.live) - 1
            worst = max(worst, error)
            rows.append([
                name, f"{row.live / MIB:.1f}", f"{row.predicted.live / MIB:.1f}",
                f"{row.predicted.activations / MIB:.1f}", f"{row.predicted.activations / row.live - 1:+.1%}",
                f"{statistics.median(step_seconds(chosen, wish)):.3f}",
            ])  # fmt: skip
        print(rows[-1], flush=True)
    section.most("outside of what was predicted, tensors to kernels", 5, 100 * worst, "%")
    section.table(["model", "MiB measured", "tensors", "with kernels", "error", "s a step"], rows)
    return section


def streaming(plan: Plan) -> Section:
    """Block Offload beside the host's own streaming with as many bytes."""
    from headroom.host.offload.block_offload import apply_offload
    from headroom.memory.link import link_speed

    section, rows = Section(), plan.kept("streaming")
    for name, wish in plan.models.items():
        if name not in STREAMED:
            continue
        with loaded(wish) as model:
            size = model.model_size()
            expected, again = sample(model, wish, 2), sample(model, wish, 2)
            repeats = same_bits(expected, again)
            whole = statistics.median(step_seconds(model, wish))
            for share in SHARES:
                ways = {
                    "ours": apply_offload(model, share * size / GB)[0],
                    "host": apply_offload(model, share * size / GB, "leaf")[0],
                }
                seconds: dict[str, list[float]] = {way: [] for way in ways}
                peaks, results, copied = dict[str, int](), list[Tensor](), 0
                for way, one in ways.items():
                    unloaded()
                    peaks[way] = peak_of(partial(into, results, one, wish))
                    copied = copied or size - int(one.loaded_size())
                same = all(same_bits(result, expected) for result in results)
                for _ in range(plan.runs):
                    for way, one in ways.items():
                        seconds[way] += step_seconds(one, wish)
                speed = link_speed(torch.device("cuda")) or math.inf
                ours, host = (statistics.median(seconds[way]) for way in ways)
                best = max(whole, copied / speed)
                bits = "yes" if same else "**no**" if repeats else "nor by itself"
                rows.append([
                    name, f"{share:.0%}", f"{share * size / GB:.1f}", f"{whole:.3f}", f"{ours:.3f}", f"{host:.3f}",
                    f"{ours / host:.2f}x", f"{copied / speed:.3f}", f"{best / ours:.0%}", bits,
                    *(f"{peak / GB:.2f}" for peak in peaks.values()),
                ])  # fmt: skip
                print(rows[-1], flush=True)
    section.parts.append(
        "Seconds of a settled step, medians by turns. Of the weights' bytes the share is on the card. Copies: bytes"
        " that are streamed, over the link's speed. Reached: the longer one of a whole model's step and of the copies,"
        " over ours. Same bits as the whole model's; nor by itself: two samplings of the whole model differ too. GB:"
        " allocated at most."
    )
    head = "model, share, GB, whole, ours, host's own, ours / host's, copies, reached, same bits, GB ours, GB host's"
    section.table(head.split(", "), rows)
    return section


def into(results: list[Tensor], model: Any, wish: Wish) -> None:
    results.append(sample(model, wish, 2))


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


# ---------------------------------------------------------------------------------------------------- its training


def trained(model: Any, wish: Wish, way: str, budget: int) -> tuple[Any, float]:
    """*Train LoRA*, by a way; the row of the run log, and the median seconds of its last steps."""
    from headroom.attention import parse_blocks
    from headroom.host.core.wrapper_kinds import APPLY_MODEL
    from headroom.host.measure.runs import LOG
    from headroom.host.measure.wrappers import measure_sampling, wrap
    from headroom.host.training.checkpointed import apply_checkpoints
    from headroom.host.training.plan import TrainingPlan
    from headroom.tests.host.training import train, training_node

    class Given:
        @staticmethod
        def conditioning(_: int) -> list[Any]:
            return text_of(wish)

    marks = Marks()

    def clock(executor: Any, *args: Any, **kwargs: Any) -> Any:
        marks.add()
        return executor(*args, **kwargs)

    changes, model = dict[str, Any](), model.clone()
    if way == OWN:
        measure_sampling(model)
        changes = {"gradient_checkpointing": True}
    else:
        kind = {BUDGET: "budget", IN_RAM: "every block"}.get(way, way)
        spent = budget if way == BUDGET else 0
        model, _ = apply_checkpoints(model, TrainingPlan(kind, parse_blocks("all"), budget=spent, in_ram=way == IN_RAM))
        changes = {"offloading": way == IN_RAM, "bypass_mode": way == IN_RAM}
    wrap(model, APPLY_MODEL, "clock", clock)
    latent = torch.randn(wish.latent, generator=torch.Generator().manual_seed(4))
    changes |= {"rank": 16, "optimizer": "AdamW", "learning_rate": 1e-4, "lora_dtype": "bf16", "steps": 6}
    train(training_node(), model, Given, latent, "bf16", **changes)  # type: ignore[arg-type]
    return LOG.rows("", "")[-1], statistics.median(marks.seconds(2))


def training(plan: Plan) -> Section:
    """A step by each way: bytes and seconds."""
    from headroom.host.prediction.stages import own_card
    from headroom.host.training.estimate import forecast_training
    from headroom.host.training.settings import TrainingSettings
    from headroom.host.training.without_data import Training

    section, rows = Section(), plan.kept("training")
    for name, wish in plan.models.items():
        if name not in TRAINED:
            continue
        with loaded(wish) as model:
            asked = Training(model, torch.zeros(wish.latent), text_of(wish), TrainingSettings(rank=16))
            said = forecast_training(asked, own_card(model.load_device))
            ways = {way.name: way for way in said.ways}
            every_kth = next((text for text in ways if text.startswith("every ") and text.endswith(" blocks")), "")
            beside = said.weights + said.constant + said.adapter
            least, most = said.peak(ways["every block"]), said.peak(ways["no checkpoints"])
            for way in (OWN, *PLANS, BUDGET, IN_RAM):
                torch.cuda.reset_peak_memory_stats()
                try:
                    row, step = trained(model, wish, way, (least + most) // 2)
                except Exception as error:  # what does not fit, or is refused, is a row
                    rows.append([name, way, f"{type(error).__name__}: {str(error)[:90]}", "", "", "", ""])
                    print(rows[-1], flush=True)
                    unloaded()
                    continue
                found = ways.get({OWN: "Train LoRA's own, depth 1", PLANS[1]: every_kth}.get(way, way))
                forecast = f"{(said.peak(found) - beside) / MIB:.0f}" if found else ""
                predicted = row.predicted.activations if row.predicted else None
                rows.append([
                    name, way, f"{row.live / MIB:.0f}", forecast,
                    f"{predicted / MIB:.0f} ({predicted / row.live - 1:+.1%})" if predicted else "",
                    f"{torch.cuda.max_memory_allocated() / GB:.2f}", f"{step:.3f}",
                ])  # fmt: skip
                print(rows[-1], flush=True)
    section.parts.append("MiB beyond weights and adapter. Seconds from a step to the next.")
    section.table(["model", "way", "live", "said before", "first step's prediction", "peak, GB", "s a step"], rows)
    return section


# ------------------------------------------------------------------------------------------------------------- VAEs


@dataclass(frozen=True)
class Decoding:
    """A VAE's decode of one latent."""

    name: str
    latent: Tensor

    def run(self, way: str, decode: Callable[[Tensor], Tensor]) -> tuple[list[str], Tensor | None, int]:
        """A row without what was allowed and planned; the result, and bytes at most."""
        found: list[Tensor] = []
        try:
            decode(self.latent)
            peak = peak_of(lambda: found.append(decode(self.latent)))
            start = time.perf_counter()
            decode(self.latent)
            torch.cuda.synchronize()
        except Exception as error:  # what is refused is a row
            return [self.name, way, "", f"{type(error).__name__}: {str(error)[:110]}", "", "", ""], None, 0
        seconds = time.perf_counter() - start
        return [self.name, way, "", f"{peak / MIB:.0f}", "", f"{seconds:.3f}", ""], found[0].float(), peak


def vae(plan: Plan) -> Section:
    """Whole, by the host's own tiles, in strips, and in budgets."""
    import comfy.sd

    from headroom.host.measure.runs import LOG
    from headroom.host.vae.settings import VAESettings
    from headroom.host.vae.wrapper import low_memory_vae

    section, rows = Section(), plan.kept("vae")
    for name, coded in plan.vaes.items():
        stock = comfy.sd.VAE(sd=state_of(coded.entries, torch.float32), dtype=coded.dtype)
        decoding = Decoding(name, torch.randn(coded.latent, generator=torch.Generator().manual_seed(6)))
        weights = stock.patcher.model_size()
        row, base, most = decoding.run("whole", stock.decode)
        rows.append(row)
        print(rows[-1], flush=True)
        if len(coded.latent) == 4:
            tiled, result, _ = decoding.run("host's tiles", stock.decode_tiled)
            rows.append([*tiled[:-1], db(result, base)])
            print(rows[-1], flush=True)
        for share in (0.0, *(coded.shares if most else ())):
            budget = (weights + share * most) / GB if share else 0.0
            ours = low_memory_vae(stock, VAESettings("exact", budget, 0 if share else 128))
            row, result, _ = decoding.run(f"budget {share:.0%}" if share else "strips of 128 px", ours.decode)
            if result is not None:
                ran = LOG.rows("", "")[-1]
                row[2] = f"{share * most / MIB:.0f}" if share else ""
                row[4] = f"{ran.predicted.activations / MIB:.0f}" if ran.predicted else ""
                row[6] = db(result, base)
            rows.append(row)
            print(rows[-1], flush=True)
            del result
        del base, stock
        unloaded()
    section.parts.append(
        "MiB beyond the weights, at most; seconds of a decode, one run after two to warm up; dB from the whole decode."
        " Budgets: the weights and a share of what the whole decode takes."
    )
    section.table(["VAE", "way", "allowed", "taken", "planned", "s", "dB"], rows)
    return section


def db(result: Tensor | None, reference: Tensor | None) -> str:
    if result is None or reference is None:
        return ""
    noise = float((result.double() - reference.double()).square().mean())
    signal = float(reference.double().square().mean())
    return "the same bits" if noise == 0 else f"{-10 * math.log10(noise / signal):.0f}"


SECTIONS = {"sampling": sampling, "streaming": streaming, "training": training, "vae": vae}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="of each way that is timed (default 3)")
    parser.add_argument("--only", metavar="NAME,...", default=",".join(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--models", metavar="TEXT", default="", help="only those whose name begins so")
    parser.add_argument("--quick", action="store_true", help="small models, into output/: to see whether it runs")
    options = parser.parse_args()
    folder = ROOT / "output" / "bench" if options.quick else Path(__file__).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.WARNING)
    enter_host()
    models, vaes = (QUICK, QUICK_CODED) if options.quick else (WISHES, CODED)
    models = {name: wish for name, wish in models.items() if name.startswith(options.models)}
    vaes = {name: coded for name, coded in vaes.items() if name.startswith(options.models)}
    fitting = {name: wish for name, wish in models.items() if not is_too_large(wish.entries, wish.dtype)}
    plan = Plan(options.runs, fitting, vaes, folder)
    for name in models.keys() - fitting.keys():
        print(f"{name}: no room in this machine")
    report = Report(folder / "gpu.md", INTRODUCTION, TITLES, is_of_gpu=True)
    for name in options.only.split(","):
        with torch.inference_mode(name != "training"):
            report.measure(name, partial(SECTIONS[name], plan), plan.runs)


if __name__ == "__main__":
    main()
