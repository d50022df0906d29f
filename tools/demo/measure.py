"""One workflow on a running host: what it made, how long it took, how much memory it needed at most."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from PIL import Image, ImageSequence
from safetensors.numpy import load
from skimage.metrics import peak_signal_noise_ratio

from ..server.client import Client, ClientError, Progress, Result, Workflow
from ..server.server import Server

MB = 2**20
MOST_OFF = 0.02  # of what a stretch of work takes
SAMPLE_SECONDS = 0.01
SETTLE_SECONDS, MOST_SETTLE_SECONDS = 0.4, 10.0

# Without these, glibc keeps freed tensors for later, and the second of two runs seems to need no memory.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(MB), "MALLOC_TRIM_THRESHOLD_": str(MB)}


@dataclass(frozen=True)
class Work:
    """Bytes of one stretch of work beyond the weights.

    Attributes:
        name: "sampling", "decode" or "encode".
        measured: of all tensors alive at once.
        predicted: of the same, without running it.
        bound: it is a plan that the work stays within.
    """

    name: str
    measured: int
    predicted: int
    bound: bool

    @property
    def foretold(self) -> bool:
        """Whether the prediction holds: within 2 %, or as a bound."""
        return self.measured <= self.predicted if self.bound else abs(self.off) <= MOST_OFF

    @property
    def off(self) -> float:
        """The prediction's relative error."""
        return self.predicted / max(1, self.measured) - 1


@dataclass(frozen=True)
class Run:
    """What a workflow made and took.

    Attributes:
        seconds: from the prompt's start to its end, loading included, without those of a Memory Report.
        peak: highest resident set size of the host over that at the prompt's start, in bytes.
        latent: the saved latent, (B, C, [T,] h, w).
        file: the saved picture or animation, as the host wrote it.
        frames: the same as (T, H, W, 3) bytes; one frame for a picture.
        report: the text of the memory report; empty without one.
        work: what the pack's run log says of each stretch of work, measured and predicted; empty without one.
    """

    seconds: float
    peak: int
    latent: NDArray[np.float32]
    file: bytes
    frames: NDArray[np.uint8]
    report: str
    work: tuple[Work, ...] = ()


class ResidentPeak:
    """Context manager; :attr:`growth` is how far a process's resident set rose above its start, in bytes.

    A thread samples it every 10 ms, so a shorter peak can be missed.
    """

    def __init__(self, process: psutil.Process) -> None:
        self._process, self._done = process, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._before = self._highest = process.memory_info().rss

    def __enter__(self) -> ResidentPeak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return int(self._highest - self._before)

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            try:
                self._highest = max(self._highest, self._process.memory_info().rss)
            except psutil.NoSuchProcess:  # the client says what became of it
                return


def measure(server: Server, client: Client, workflow: Workflow, progress: Callable[[Progress], None]) -> Run:
    """Run a workflow from a clean start. Raises `ClientError`."""
    process = psutil.Process(server.pid)
    free_memory(client, process)
    with ResidentPeak(process) as memory:
        result = client.run(workflow, progress=progress)
    if result.cached:
        raise ClientError(f"The host reused {len(result.cached)} cached results, so the run measured nothing.")
    latents, pictures = (_saved(client, workflow, result, kind) for kind in ("latents", "images"))
    reports = [output["text"][0] for output in result.outputs.values() if "text" in output]
    latent = load(latents)["latent_tensor"]
    report, work = "\n".join(reports), work_of(client, result.prompt_id) if reports else ()
    reporting = sum(result.node_seconds.get(number, 0.0) for number in reporters(workflow))
    return Run(result.seconds - reporting, memory.growth, latent, pictures, read_frames(pictures), report, work)


def reporters(workflow: Workflow) -> list[str]:
    """The nodes whose only work is to tell of the others'."""
    return [number for number, node in workflow.items() if node["class_type"] == "HeadroomReport"]


def work_of(client: Client, prompt: str) -> tuple[Work, ...]:
    """What the run log holds of a prompt that had a report, which asks for the predictions."""
    rows = client.get(f"/headroom/runs/{prompt}")["rows"]
    return tuple(
        Work(row["work"], row["live_bytes"], row["predicted"]["live"], row["predicted"]["bound"])
        for row in rows
        if row["live_bytes"] is not None and row["predicted"] is not None
    )


def free_memory(client: Client, process: psutil.Process) -> None:
    """Have the host forget its models and results, and wait until it has given the memory back."""
    client.free()
    deadline, before = time.monotonic() + MOST_SETTLE_SECONDS, process.memory_info().rss + 2 * MB
    while time.monotonic() < deadline:
        time.sleep(SETTLE_SECONDS)
        now = process.memory_info().rss
        if abs(now - before) < MB:
            return
        before = now


def _saved(client: Client, workflow: Workflow, result: Result, kind: str) -> bytes:
    """The first file that a save node of the workflow reports as ``latents`` or ``images``."""
    for node_id, output in result.outputs.items():
        if kind in output and workflow[node_id]["class_type"].startswith("Save"):
            return client.file(output[kind][0])
    raise ClientError(f"The workflow saved no {kind}.")


def read_frames(file: bytes) -> NDArray[np.uint8]:
    """A picture or an animation as (T, H, W, 3) bytes."""
    with Image.open(io.BytesIO(file)) as image:
        return np.stack([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)])


def latent_psnr(result: NDArray[Any], reference: NDArray[Any]) -> float:
    """PSNR in dB; the peak is the range of the reference."""
    return _psnr(result, reference, float(np.ptp(reference)))


def picture_psnr(result: NDArray[Any], reference: NDArray[Any]) -> float:
    """PSNR in dB of 8-bit pictures; over all frames for a video."""
    return _psnr(result, reference, 255.0)


def _psnr(result: NDArray[Any], reference: NDArray[Any], peak: float) -> float:
    with np.errstate(divide="ignore"):  # identical: infinite
        return float(peak_signal_noise_ratio(reference.astype(np.float64), result.astype(np.float64), data_range=peak))
