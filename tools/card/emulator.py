"""The emulated card of `tests/emulator`: built once into the cache, and how a process is started on it.

Standard library only. It needs Linux on x86-64, g++ and a torch built for CUDA, and says which of them is missing.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from ..setup import cache
from ..setup.environment import PACK, Environment, ask
from ..setup.progress import SetupError, Stage, run_logged
from .cards import CARDS, CardModel

HOME = PACK / "tests" / "emulator"
SOURCES = HOME / "source"
RUNTIME = ["clock", "copies", "driver", "memory", "races", "runtime", "streams", "watch"]
OPERATORS = ["allocator", "attention", "call", "kernels", "npu", "operators", "shapes", "wide", "work"]
LIBRARY = "libcuda.so.1"  # also under the name by which drivers are looked for
COMPILER = "g++"
BUILD_GB = 0.1
MB_PER_GB = 1024
ASK_PATHS = (
    "import sysconfig, torch; p = sysconfig.get_paths(); "
    "print(p['purelib'], p['include'], torch.__version__, torch.version.cuda, torch.__path__[0], sep='\\n')"
)


def missing() -> str | None:
    """Why there can be no emulated card here, in one sentence; None if there can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"The emulated card needs Linux on x86-64; this is {platform.system()} on {platform.machine()}."
    if not shutil.which(COMPILER):
        return "The emulated card needs g++ (on Debian or Ubuntu: sudo apt install g++)."
    return None


def build(environment: Environment) -> Path:
    """The folder with the built card, made if need be: named after its sources and torch. Raises `SetupError`."""
    if reason := missing():
        raise SetupError(reason)
    site, include, version, cuda, torch = ask(environment.python, ASK_PATHS).splitlines()
    if cuda == "None":
        raise SetupError(f"The emulated card needs a torch built for CUDA; {environment.python} has torch {version}.")
    sources = sorted(SOURCES.glob("*.[ch]*"))
    name = f"card-{cache.key(version, site, *(path.read_text(encoding='utf-8') for path in sources))}"

    def make(folder: Path) -> None:
        log = cache.log_path(folder.name)
        with Stage("Building the emulated card") as stage:
            for command in _commands(folder, Path(site), Path(include), Path(torch), cuda):
                stage.detail = Path(command[-1]).name
                if run_logged(command, log, stage, lambda line: None, {}):
                    raise SetupError(f"g++ could not build the emulated card: its full output is in {log}.")

    return cache.cached(name, "the emulated card", BUILD_GB, make)


def _commands(folder: Path, site: Path, include: Path, torch: Path, cuda: str) -> list[list[str]]:
    """The card itself, a CUDA runtime that is preloaded; and the operators, which torch loads."""
    one_wheel = site / f"nvidia/cu{cuda.partition('.')[0]}/include"  # from CUDA 13 on
    toolkit = one_wheel if one_wheel.is_dir() else site / "nvidia/cuda_runtime/include"
    # crt/host_defines.h comes with Triton's wheel alone.
    headers = [f"-I{toolkit}", f"-I{site / 'triton/backends/nvidia/include'}"]
    pytorch = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}", f"-I{include}"]
    shared = [COMPILER, "-std=c++17", "-g1", "-fPIC", "-shared", "-w"]
    runtime = [str(SOURCES / f"{name}.cpp") for name in RUNTIME]
    # As one: the headers of torch take ten times as long to read as our files.
    *others, last = [str(SOURCES / f"{name}.cpp") for name in OPERATORS]
    operators = [word for path in others for word in ("-include", path)] + [last]
    libraries = [f"-L{torch / 'lib'}", "-ltorch_cpu", "-ltorch_cuda", "-lc10", "-lc10_cuda", "-ldl"]
    return [
        [
            *shared,
            "-O2",
            "-Wl,-soname,libcuda.so.1",
            *headers,
            *runtime,
            "-ldl",
            "-lpthread",
            "-o",
            str(folder / LIBRARY),
        ],
        [*shared, "-O1", *pytorch, *headers, *operators, *libraries, "-o", str(folder / "operators.so")],
    ]


def variables(
    environment: Environment,
    card: CardModel | str = "rtx3060",
    *,
    vram_mb: float | None = None,
    device: str = "cuda",
    lazy: bool = False,
    races: bool = False,
    stats: Path | None = None,
    **settings: object,
) -> dict[str, str]:
    """What to add to the environment variables of a process that is to run on the emulated card.

    Args:
        environment: whose torch it is built for.
        card: which card, of `cards.CARDS`; its memory and the rates of its clock.
        vram_mb: other memory than the card's, in 2**20 bytes.
        device: cuda, or npu: an accelerator that is not CUDA.
        lazy: work is done as late as the order of streams permits.
        races: look for accesses that nothing orders.
        stats: a file that its counters are written to four times a second.
        settings: more of the emulator's variables, as `context_mb=300`; `tests/emulator/README.md` has them.
    """
    model = CARDS[card] if isinstance(card, str) else card
    built = build(environment)
    given = {
        "DEVICE": device,
        "BUILD": built,
        "VRAM_MB": model.vram_gb * MB_PER_GB if vram_mb is None else vram_mb,
        "SM": model.capability,
        "NAME": f"{model.title} {model.vram_gb:g} GB (emulated)",
        "MULTIPROCESSORS": model.multiprocessors,
        "TELLS_CLOCKS": int(model.tells_clocks),
        "TFLOPS": model.single,
        "TFLOPS_TF32": model.tf32,
        "TFLOPS_HALF": model.half,
        "TFLOPS_EIGHT": model.eight,
        "TFLOPS_DOUBLE": model.double,
        "HBM_GBPS": model.bandwidth,
        "H2D_GBPS": model.link,
        "D2H_GBPS": model.link,
        "LAZY": int(bool(lazy)),
        "RACE": int(races),
        "STATS": stats or "",
        **{name.upper(): value for name, value in settings.items()},
    }
    folders = [HOME / "site", *([HOME / "site_npu"] if device == "npu" else [])]
    preload = {
        "LD_PRELOAD": str(built / LIBRARY) if device == "cuda" else ""
    }  # a card's own process may start an npu's
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    return {f"EMU_{name}": str(value) for name, value in given.items()} | preload | {"PYTHONPATH": path}


def is_on(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether a process with these variables runs on the emulated card."""
    return bool(variables.get("EMU_DEVICE"))
