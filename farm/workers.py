"""Workers as they are named on the command line: an address, and what its card is to count as."""

from __future__ import annotations

import os
import ssl
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..graph.cards import known_card
from ..graph.settings import check_share, check_size
from .plain import Address

HEADERS = "HEADROOM_FARM_HEADERS"  # as --header, one a line: others on a machine see its command lines
TERMS = "gpu, vram, ram, limit"


@dataclass(frozen=True)
class Worker:
    """A ComfyUI server that prompts may go to.

    Attributes:
        name: its host and port, for people and for the journal.
        address: where it is.
        terms: of an estimate: ``gpu``, ``vram_gb``, ``ram_gb``, ``limit``; what is not in it is the server's own.
        node: the Ray node that speaks to it; empty: any.
    """

    name: str
    address: Address
    terms: dict[str, Any] = field(default_factory=dict)
    node: str = ""


def workers(named: Iterable[str], headers: Iterable[str] = (), ca: str = "") -> list[Worker]:
    """The workers that are meant.

    Args:
        named: each ``http://host:port``, behind a # what its card counts as: ``gpu=rtx 3060 12gb,limit=0.8``.
        headers: ``Name: value`` each, sent with every request.
        ca: a file of certificates to trust.

    Raises:
        ValueError: one makes no sense, or two are the same.
    """
    sent = dict(_header(line) for line in [*os.environ.get(HEADERS, "").splitlines(), *headers] if line.strip())
    trusted = _certificates(ca) if ca else ""
    found = [_worker(text, sent, trusted) for text in named]
    if not found:
        raise ValueError("--workers: name at least one, as http://127.0.0.1:8188, or have some started with --start 2")
    for one in found:
        if sum(other.name == one.name for other in found) > 1:
            raise ValueError(f"--workers: {one.name} is named twice; each server once")
    return found


def _worker(text: str, headers: dict[str, str], ca: str) -> Worker:
    url, _, said = text.partition("#")
    parts = urllib.parse.urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"--workers: {text}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(f"--workers: {text} is no address; write it as http://127.0.0.1:8188")
    if parts.username or parts.password:
        raise ValueError(f"--workers: put the password of {parts.hostname} into --header or {HEADERS}, not its address")
    port = port or (443 if parts.scheme == "https" else 80)
    values = dict(_term(text, one) for one in said.split(",") if one.strip())
    node = values.pop("node", "")
    name = f"{parts.hostname}:{port}{parts.path.rstrip('/')}"
    return Worker(name, Address(url.rstrip("/"), headers, ca), _terms(text, values), node)


def _term(text: str, one: str) -> tuple[str, str]:
    name, _, value = one.partition("=")
    if name.strip() not in ("gpu", "vram", "ram", "limit", "node") or not value.strip():
        raise ValueError(f"--workers: {text}: behind the # write {TERMS} or node, as #gpu=rtx 3060 12gb,limit=0.8")
    return name.strip(), value.strip()


def _terms(text: str, values: dict[str, str]) -> dict[str, Any]:
    numbers = {name: _number(text, name, values[name]) for name in ("vram", "ram", "limit") if name in values}
    terms: dict[str, Any] = {}
    if "gpu" in values:
        card = known_card(f"--workers: {text}: gpu", values["gpu"], numbers.get("vram"))
        if card.vram_gb is None:
            raise ValueError(f"--workers: {text}: say how many GB it has, as gpu={values['gpu']},vram=8")
        terms |= {"gpu": card.kernels, "vram_gb": card.vram_gb}
    elif "vram" in numbers:
        terms["vram_gb"] = numbers["vram"]
    if "vram_gb" in terms:
        check_size("vram", terms["vram_gb"])
    if "ram" in numbers:
        check_size("ram", numbers["ram"])
        terms["ram_gb"] = numbers["ram"]
    if "limit" in numbers:
        check_share("limit", numbers["limit"])
        terms["limit"] = numbers["limit"]
    return terms


def _number(text: str, name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise ValueError(f"--workers: {text}: {name}={value} is no number") from error


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip() or any(sign in line for sign in "\r\n"):
        raise ValueError("--header: write it as 'Authorization: Bearer …'")
    return name.strip(), value.strip()


def _certificates(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="ascii")
        ssl.create_default_context(cadata=text or " ")  # of nothing it would take the system's
        return text
    except (OSError, ValueError) as error:
        raise ValueError(f"--ca: {path} cannot be read as certificates (PEM)") from error
