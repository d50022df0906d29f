"""The workers that a server's owner has named, in a file of ComfyUI's user folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import folder_paths

DEVICES = "devices"  # the name of this machine's own
MOST_BYTES = 1 << 20
MOST_WORKERS = 64


@dataclass(frozen=True)
class NamedCluster:
    """A Ray cluster.

    Attributes:
        address: of its head, with the port of Ray's clients, as ``127.0.0.1:10001``.
        workers: how many take part; 0 = one on each GPU, or without GPUs one on each machine.
        budget_gb: bytes of each in GB of 2^30 bytes, weights included; 0 = its device's total minus ComfyUI's reserve.
        token_file: where the cluster's token is; empty = where Ray looks for it.
    """

    name: str
    address: str
    workers: int = 0
    budget_gb: float = 0.0
    token_file: str = ""


def workers_path() -> Path:
    """The owner's file."""
    return Path(folder_paths.get_user_directory()) / "headroom" / "workers.json"


def cluster_named(name: str) -> NamedCluster:
    """What the owner wrote of a name.

    Raises:
        ValueError: nothing, or something that makes no sense; the sentence has the file.
    """
    path = workers_path()
    known = _read(path)
    if name not in known:
        has = f"has {', '.join(sorted(known))}" if known else "does not exist" if not path.exists() else "has none"
        raise ValueError(
            f"workers: this server has no workers of the name {name!r}; {path}, where its owner names them, {has}."
            f" Leave workers empty, or write {DEVICES} for this machine's own devices"
        )
    return _checked(name, known[name], path)


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"workers: {path} is larger than 1 MiB")
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"workers: {path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f'workers: {path} is to hold an object such as {{"desk": {{"address": "127.0.0.1:10001"}}}}')
    return found


def _checked(name: str, entry: Any, path: Path) -> NamedCluster:
    entry = entry if isinstance(entry, dict) else {}
    kinds: dict[str, Any] = {"address": str, "workers": int, "budget_gb": (int, float), "token_file": str}
    wrong = [key for key, value in entry.items() if key not in kinds or isinstance(value, bool)]
    wrong += [key for key, kind in kinds.items() if key in entry and not isinstance(entry[key], kind)]
    host, _, port = str(entry.get("address", "")).rpartition(":")
    if not (host and port.isdigit()):
        wrong.append("address")
    if not wrong and not 0 <= entry.get("workers", 0) <= MOST_WORKERS:
        wrong.append("workers")
    if not wrong and not 0 <= entry.get("budget_gb", 0) <= 1 << 20:
        wrong.append("budget_gb")
    if wrong:
        raise ValueError(
            f"workers: {path}, {name}: {' and '.join(dict.fromkeys(wrong))} cannot be used; give an address as"
            f" 127.0.0.1:10001, and if need be workers (0 to {MOST_WORKERS}), budget_gb and token_file"
        )
    return NamedCluster(name, **entry)
