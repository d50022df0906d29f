"""Where a video goes in the host's output folder, what is left of unfinished ones there, and how much disk there is."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import folder_paths

LONGEST_ENDING = "webm.part"  # of what a name gets while it is written
UNFINISHED = "headroom_unfinished"  # in the output folder: on the disk that the video will lie on


@dataclass(frozen=True)
class Place:
    """A file that is going to be written.

    Attributes:
        folder: it lies in, which is there and can be written.
        stem: of its name, with the host's counter.
        subfolder: of the output folder.
    """

    folder: Path
    stem: str
    subfolder: str


def place_for(filename_prefix: str, width: int, height: int) -> Place:
    """By the host's rules for prefixes: subfolders, dates, a counter.

    Raises:
        ValueError: a prefix that leads out of the output folder, or into a folder that cannot be written.
    """
    root = folder_paths.get_output_directory()
    if not filename_prefix.strip(" /\\") or "\0" in filename_prefix:
        raise ValueError("filename_prefix: is empty; give the file a name, such as video/ComfyUI")
    inside = os.path.abspath(os.path.join(root, os.path.normpath(filename_prefix)))
    if os.path.commonpath([inside, os.path.abspath(root)]) != os.path.abspath(root):
        raise ValueError(
            f"filename_prefix: {filename_prefix[:80]} leads out of the output folder; use a name or a subfolder of it"
        )
    try:
        folder, name, counter, subfolder, _ = folder_paths.get_save_image_path(filename_prefix, root, width, height)
        with tempfile.TemporaryFile(dir=folder):
            pass
        stem = f"{name}_{counter:05}_"
        with contextlib.suppress(FileNotFoundError):
            os.lstat(os.path.join(folder, f"{stem}.{LONGEST_ENDING}"))  # refused where it is too long
    except OSError as error:
        raise ValueError(
            f"filename_prefix: {filename_prefix[:80]} cannot be written ({error.strerror}); use a shorter name, choose"
            " another subfolder of the output folder, or make it writable"
        ) from error
    return Place(Path(folder), stem, subfolder)


def unfinished() -> Path:
    """The folder of videos that are not finished; one folder for each."""
    return Path(folder_paths.get_output_directory()) / UNFINISHED
