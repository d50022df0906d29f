"""Find or make what the pack runs in: a ComfyUI, a Python with its requirements, and small checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from . import cache, frontend, hosts
from .install import interpreter, make_venv, pip
from .progress import SetupError, Stage, run_logged

HERE = Path(__file__).resolve().parent
PACK = HERE.parents[1]
MODELS = PACK / "tools" / "models"

# Any other torch breaks the other two.
TORCH = ("torch==2.11.0", "torchvision==0.26.0", "torchaudio==2.11.0")
CONSTRAINED = ((3, 11), (3, 12))  # the Pythons for which constraints.txt was resolved
PYTHON_GB, MODELS_GB = 9, 2
DOWNLOAD_GB = 2.7  # of it, as packages
NEEDED = ("pytest", "xdist", "skimage", "matplotlib")  # beyond ComfyUI's own requirements


@dataclass(frozen=True)
class Environment:
    """Where everything is; `models` holds the folders models, datasets and input, `pack` is this checkout,
    `frontend` the pages of another frontend than the one that was installed with ComfyUI."""

    python: Path
    comfyui: Path
    version: str
    models: Path
    pack: Path
    frontend: Path | None = None

    def json(self) -> str:
        """One JSON object on one line."""
        return json.dumps({name: str(value) for name, value in asdict(self).items() if value is not None})

    def variables(self) -> dict[str, str]:
        """How the tests and benchmarks are told (`from_variables`)."""
        return {
            "HEADROOM_COMFYUI": str(self.comfyui),
            "HEADROOM_MODELS": str(self.models),
            "HEADROOM_VERSION": self.version,
            **({} if self.frontend is None else {"HEADROOM_FRONTEND": str(self.frontend)}),
        }

    @classmethod
    def from_variables(cls, variables: Mapping[str, str] = os.environ) -> Environment:
        """The environment that the running process was started in. Raises KeyError outside of one."""
        comfyui, models = Path(variables["HEADROOM_COMFYUI"]), Path(variables["HEADROOM_MODELS"])
        frontend = Path(variables["HEADROOM_FRONTEND"]) if "HEADROOM_FRONTEND" in variables else None
        return cls(Path(sys.executable), comfyui, variables["HEADROOM_VERSION"], models, PACK, frontend)

    def script(self, name: str) -> Path:
        """A console script of this Python."""
        folder = ask(self.python, "import sysconfig; print(sysconfig.get_path('scripts'))")
        return Path(folder) / (f"{name}.exe" if os.name == "nt" else name)


def prepare(
    version: str | None = None, *, with_tools: bool = False, frontend_version: str | None = None
) -> Environment:
    """Find or make the environment; of the host `version` if given (known, or a path), not of one found here.

    `with_tools` asks for what the tests need too, `frontend_version` for another frontend than the host's own. Raises
    `SetupError`.
    """
    found = None if version else _find_comfyui()
    if found is None:
        announce()
    comfyui = found or hosts.fetch(version or hosts.DEFAULT)
    python = _find_python(comfyui) if found else _make_python(comfyui)
    if found and with_tools:
        _require_tools(python)
    stated = hosts.read_version(comfyui)
    print(f"Using the ComfyUI {stated} in {comfyui} with {python}.", file=sys.stderr)
    models = _make_models(python, comfyui, stated)
    pages = frontend.fetch(frontend_version) if frontend_version else None
    return Environment(python, comfyui, stated, models, PACK, pages)


def announce() -> None:
    """Says what the first run downloads and how long that takes, before it does."""
    if any(path.is_dir() for path in cache.root().glob("python-*")):
        return
    minutes = (f"{8e3 * DOWNLOAD_GB / rate / 60:.0f} minutes at {rate} Mbit/s" for rate in (100, 20))
    print(
        f"The first time this downloads about {DOWNLOAD_GB} GB (ComfyUI, PyTorch): {', '.join(minutes)}. With what is"
        f" made of it, about {PYTHON_GB + MODELS_GB} GB lie in {cache.root()} then; some minutes to unpack, one to"
        " generate small models. Later runs need none of it.",
        file=sys.stderr,
    )


# ---------------------------------------------------------------------------- a ComfyUI of the user's own


def _find_comfyui() -> Path | None:
    """The ComfyUI named by `COMFYUI_PATH`, else the one whose `custom_nodes` holds this checkout."""
    if chosen := os.environ.get("COMFYUI_PATH"):
        comfyui = Path(chosen).expanduser().absolute()
        if not hosts.is_comfyui(comfyui):
            raise SetupError(
                f"COMFYUI_PATH is {chosen}, where there is no ComfyUI: set it to the folder that holds "
                "ComfyUI's main.py, or unset it."
            )
        return comfyui
    around = PACK.parent.parent
    return around if PACK.parent.name == "custom_nodes" and hosts.is_comfyui(around) else None


def _find_python(comfyui: Path) -> Path:
    """The Python that runs a user's ComfyUI; nothing is ever installed into it."""
    for python in _candidates(comfyui):
        if python.is_file() and not _missing(python, "torch", "aiohttp", "safetensors"):
            return python
    raise SetupError(
        f"No Python with the requirements of the ComfyUI in {comfyui} was found: set COMFYUI_PYTHON to the "
        f"one that runs it, or give --host {hosts.DEFAULT} to have a private ComfyUI and Python installed."
    )


def _candidates(comfyui: Path) -> Iterator[Path]:
    if chosen := os.environ.get("COMFYUI_PYTHON"):
        yield Path(chosen).expanduser().absolute()
        return
    yield interpreter(comfyui / ".venv")
    yield interpreter(comfyui / "venv")
    yield comfyui.parent / "python_embeded" / "python.exe"  # the portable build for Windows spells it so
    yield Path(sys.executable)


def _missing(python: Path, *modules: str) -> list[str]:
    code = f"from importlib.util import find_spec; print(*(m for m in {modules} if find_spec(m) is None))"
    return ask(python, code).split()


def _require_tools(python: Path) -> None:
    if missing := _missing(python, *NEEDED):
        raise SetupError(
            f"The Python of your ComfyUI lacks {', '.join(missing)}: install what is missing with "
            f"`{python} -m pip install -r {HERE / 'requirements.txt'}`, or give --host {hosts.DEFAULT} to "
            "have a private ComfyUI and Python installed."
        )


def ask(python: Path, code: str) -> str:
    answer = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)
    if answer.returncode:
        raise SetupError(f"{python} does not work ({answer.stderr.strip()[-200:]}): repair or remove it.")
    return answer.stdout.strip()


# ---------------------------------------------------------------------------------------- made and cached


def _make_python(comfyui: Path) -> Path:
    """The cached Python environment for a host, installed if need be."""
    requirements = [comfyui / "requirements.txt", HERE / "requirements.txt"]
    constraints = [HERE / "constraints.txt"] if sys.version_info[:2] in CONSTRAINED else []
    texts = [path.read_text(encoding="utf-8") for path in requirements + constraints]
    build_tag = f"{sys.implementation.cache_tag} {sysconfig.get_platform()}"

    def build(folder: Path) -> None:
        log = cache.log_path(folder.name)
        with Stage("Installing the requirements of ComfyUI and of the tests") as stage:
            python = make_venv(folder, log, stage)
            files = [word for path in requirements for word in ("-r", path)]
            limits = [word for path in constraints for word in ("-c", path)]
            pip(python, "install", *TORCH, *files, *limits, log=log, stage=stage)
            if comfyui.is_relative_to(cache.root()):
                stage.detail = "compiling ComfyUI"  # a server never writes into its tree (server.py)
                compile_all = (python, "-m", "compileall", "-q", comfyui)
                subprocess.run(compile_all, check=False, stdout=subprocess.DEVNULL)

    name = f"python-{cache.key(build_tag, *TORCH, *texts)}"
    folder = cache.cached(name, "the Python environment", PYTHON_GB, build)
    python = interpreter(folder)
    if not python.is_file():
        raise SetupError(f"The Python that {folder} was made with is gone: delete that folder and run this again.")
    return python


def _make_models(python: Path, comfyui: Path, version: str) -> Path:
    """The cached checkpoints for a host, generated if need be."""
    sources = [*sorted(MODELS.glob("*.py")), *sorted((MODELS / "painter").glob("*.py"))]
    trained = sorted((MODELS / "weights").glob("*.safetensors"))

    def build(folder: Path) -> None:
        log = cache.log_path(folder.name)
        with Stage("Generating small checkpoints") as stage:
            command = (python, "-m", "tools.models", "--comfyui", comfyui, "--out", folder)
            variables = {"PYTHONDONTWRITEBYTECODE": "1"}  # a user's tree stays as it is
            if status := run_logged(command, log, stage, str.strip, variables, PACK):
                raise SetupError(f"tools.models ended with status {status}: its full output is in {log}.")

    digests = (hashlib.sha256(path.read_bytes()).hexdigest() for path in trained)
    name = f"models-{cache.key(version, *(path.read_text(encoding='utf-8') for path in sources), *digests)}"
    return cache.cached(name, "the small checkpoints", MODELS_GB, build)
