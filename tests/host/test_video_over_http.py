"""Videos to and from files in a running ComfyUI: the stock nodes behind them, and a server that is killed."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file

from headroom.tools.server.client import Client, PromptFailed, PromptInterrupted, Workflow
from headroom.tools.server.server import Server
from headroom.video import FrameReader

from ..nightly import at_night
from .conftest import ENVIRONMENT, ON_CARD

CELLS = 25  # 97 frames: a segment of 65, and one of 32
KILLED_CELLS = 89  # 353 frames: five segments and a part
UNFINISHED, SEGMENTS = "headroom_unfinished", "*/*-*.mkv"


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def noise(server: Server, cells: int, seed: int = 3, name: str = "noise") -> str:
    """A latent of a video among the server's inputs."""
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn(1, 16, cells, 8, 12, generator=generator)
    path = server.base / "input" / f"{name}_{cells}.latent"
    save_file({"latent_tensor": latent, "latent_format_version_0": torch.tensor([])}, str(path))
    return path.name


def to_file(latent: str, **widgets: Any) -> Workflow:
    asked = {"fps": 16.0, "format": "mkv ffv1", "filename_prefix": "video/http", **widgets}
    return {
        "1": node("VAELoader", vae_name="tiny_vae_wan21.safetensors"),
        "2": node("LoadLatent", latent=latent),
        "3": node("HeadroomVAEDecodeVideo", samples=["2", 0], vae=["1", 0], **asked),
    }


def file_of(server: Server, output: dict[str, Any]) -> Path:
    (entry,) = output["images"]
    return server.base / "output" / entry["subfolder"] / entry["filename"]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_stock_nodes_behind_it(server: Server, client: Client) -> None:
    """Save Video, Trim Video and Get Video Components take it; the frames are those of the stock decode."""
    latent = noise(server, 5)
    workflow = {
        **to_file(latent, format="mp4 h264"),
        "4": node("SaveVideo", video=["3", 0], filename_prefix="video/saved", format="mp4", codec="h264"),
        "5": node("Video Slice", video=["3", 0], start_time=0.25, duration=0.5, strict_duration=False),
        "6": node("GetVideoComponents", video=["5", 0]),
        "7": node("SaveImage", images=["6", 0], filename_prefix="trimmed"),
        "8": node("HeadroomReport", anything=["3", 0]),
    }
    if "codec.encoding" not in str(client.object_info("SaveVideo")):
        workflow["4"]["inputs"]["codec"] = "h264"
    outputs = client.run(workflow).outputs
    made = FrameReader(file_of(server, outputs["3"]))
    saved = FrameReader(file_of(server, outputs["4"]))
    assert (made.frames, made.rate) == (17, 16)
    assert torch.equal(torch.cat(list(saved.windows(16))), torch.cat(list(made.windows(16))))
    assert len(outputs["7"]["images"]) == 8
    assert "17 frames to http_" in outputs["3"]["text"][0]
    assert "decode" in outputs["8"]["text"][0]
    assert "17 frames to http_" in outputs["8"]["text"][0]


def test_from_a_file_and_back(server: Server, client: Client) -> None:
    latent = noise(server, 3)
    workflow = {
        **to_file(latent, format="png"),  # of which ComfyUI's own reader takes the values as they are
        "4": node(
            "HeadroomVAEEncodeVideo", video=["3", 0], vae=["1", 0], width=0, height=0, upscale_method="lanczos",
            crop="center",
        ),
        "5": node("SaveLatent", samples=["4", 0], filename_prefix="from_file"),
        "6": node("GetVideoComponents", video=["3", 0]),
        "7": node("VAEEncode", pixels=["6", 0], vae=["1", 0]),
        "8": node("SaveLatent", samples=["7", 0], filename_prefix="stock"),
    }  # fmt: skip
    outputs = client.run(workflow).outputs
    ours, stock = (load(client.latent(outputs[number]["latents"][0]))["latent_tensor"] for number in ("5", "8"))
    assert ours.shape == stock.shape
    assert torch.equal(ours, stock)


def test_a_cancel_ends_it_and_the_next_goes_on(server: Server, client: Client) -> None:
    import threading

    workflow = to_file(noise(server, CELLS), filename_prefix="video/cancelled")
    folder = server.base / "output" / UNFINISHED

    def cancel() -> None:
        if wait_for(folder, SEGMENTS):
            Client(server.url).interrupt()

    waiting = threading.Thread(target=cancel)
    waiting.start()
    try:
        client.run(workflow)
    except PromptInterrupted:
        result = client.run(workflow)
        assert "went on from frame 65" in result.outputs["3"]["text"][0]
    waiting.join()
    assert not list(folder.iterdir())
    assert FrameReader(next((server.base / "output" / "video").glob("cancelled_*"))).frames == 4 * (CELLS - 1) + 1


def test_errors_are_sentences(server: Server, client: Client) -> None:
    latent = noise(server, 3)
    for widgets, said in (
        ({"format": "mp4 h264", "crf": 60.0}, "crf is 60"),
        ({"filename_prefix": "../../x"}, "filename_prefix: .* leads out"),
    ):
        with pytest.raises(PromptFailed, match=said):
            client.run(to_file(latent, **widgets))


def wait_for(folder: Path, files: str, seconds: float = 120.0) -> bool:
    """Until there are files of a name; False if it takes too long."""
    ended = time.monotonic() + seconds
    while time.monotonic() < ended:
        if list(folder.glob(files)):
            return True
        time.sleep(0.002)
    return False


@at_night
@pytest.mark.parametrize("number", range(20))
def test_a_killed_server_goes_on(server: Server, client: Client, tmp_path: Path, number: int) -> None:
    """After kill -9 at any moment of a decode and a new start the file is that of a run that nobody ended, byte for
    byte, and nothing of a segment that was closed is computed again."""
    chance = random.Random(number)
    latent = noise(server, KILLED_CELLS, name=f"killed{number}", seed=number)
    started = time.monotonic()
    whole = client.run(to_file(latent, filename_prefix="whole"))
    seconds = time.monotonic() - started
    expected = digest(file_of(server, whole.outputs["3"]))
    unfinished = tmp_path / "output" / UNFINISHED
    first = Server(ENVIRONMENT, cpu=not ON_CARD, base=tmp_path).__enter__()
    try:
        latent = noise(first, KILLED_CELLS, name=f"killed{number}", seed=number)
        workflow = to_file(latent, filename_prefix="whole")
        Client(first.url).submit(workflow)
        assert wait_for(unfinished, "*/*")
        time.sleep(chance.uniform(0, seconds))
        os.killpg(first.pid, signal.SIGKILL)
    finally:
        first.__exit__(None, None, None)
    done = not list(unfinished.iterdir())
    kept = max((int(path.stem.rpartition("-")[2]) for path in unfinished.glob(SEGMENTS)), default=0)
    with Server(ENVIRONMENT, cpu=not ON_CARD, base=tmp_path) as second:
        again = Client(second.url).run(workflow)
        assert digest(file_of(second, again.outputs["3"])) == expected
        assert done or not kept or f"went on from frame {kept}" in again.outputs["3"]["text"][0]
        assert not list(unfinished.iterdir())
