"""What both sides of Ray know. Carried by it as :mod:`.comfy` is, and needs the standard library alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

UNREACHABLE = "unreachable"  # the status of a server that does not answer
MODEL_FILES = (".safetensors", ".sft", ".gguf", ".ckpt", ".pt", ".pt2", ".pth", ".bin", ".onnx")


@dataclass(frozen=True)
class Address:
    """Where a server is, and what it wants to see.

    Attributes:
        url: without a slash at its end.
        headers: of each request, such as Authorization.
        ca: text of certificates to trust instead of the system's; empty: the system's.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    ca: str = ""
