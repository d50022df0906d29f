"""Results in one folder: a folder for each job, which appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .prompts import Job

ABOUT = "result.json"
Fetched = Callable[[Mapping[str, str]], AsyncIterator[bytes]]


class NotWhole(Exception):
    """A worker was gone before a file had come over."""


async def store(
    folder: Path, job: Job, about: Mapping[str, Any], files: Sequence[Mapping[str, str]], fetch: Fetched
) -> list[str]:
    """Fetches a job's files and puts them in place.

    Args:
        folder: of all results.
        about: what is told of the job in its ``result.json``, beside its prompt and its files.
        files: entries of the server's outputs.
        fetch: gives an entry's content in pieces, the last of them empty.

    Returns:
        The files' names within the job's folder. Where the folder is there already it stays as it is.

    Raises:
        NotWhole: a file broke off.
        OSError: the disk takes no more; nothing of the job is left.
    """
    place = folder / job.name
    if (there := finished(folder, job.name)) is not None:
        return there
    part = folder / f".{job.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        told = [await _fetch(part, entry, fetch) for entry in files]
        text = json.dumps({**about, "job": job.name, "prompt": job.prompt, "files": told}, indent=2, ensure_ascii=False)
        _write_whole(part / ABOUT, text.encode())
        shutil.rmtree(place, ignore_errors=True)  # of a result that somebody has cut
        os.replace(part, place)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return [one["file"] for one in told]


def finished(folder: Path, name: str) -> list[str] | None:
    """The files of a job whose results are there whole; None: they are not."""
    try:
        about = json.loads((folder / name / ABOUT).read_text(encoding="utf-8"))
        files = about["files"]
        if all((folder / name / one["file"]).stat().st_size == one["bytes"] for one in files):
            return [str(one["file"]) for one in files]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


async def _fetch(part: Path, entry: Mapping[str, str], fetch: Fetched) -> dict[str, Any]:
    name, digest, size, whole = _free_name(part, entry["filename"]), hashlib.sha256(), 0, False
    with (part / name).open("xb") as file:
        async for piece in fetch(entry):
            whole = not piece
            digest.update(piece)
            size += file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    if not whole:
        raise NotWhole(entry["filename"])
    return {"file": name, "bytes": size, "sha256": digest.hexdigest(), "node": entry.get("node", "")}


def _free_name(part: Path, filename: str) -> str:
    """The server's own name, without folders, and counted where two are the same."""
    name = re.sub(r'[\\/:*?"<>|\x00-\x1f]+', "-", filename).strip(". ")
    name = name.encode()[-150:].decode(errors="ignore") or "file"  # a file system counts bytes
    stem, dot, end = name.rpartition(".")
    stem, end = (stem, f".{end}") if dot else (name, "")
    tries = [name, *(f"{stem}-{number}{end}" for number in range(2, 1000))]
    return next(one for one in tries if one != ABOUT and not (part / one).exists())


def _write_whole(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
