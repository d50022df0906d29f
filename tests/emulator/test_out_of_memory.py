"""A prompt that runs out of a card's memory ends with advice, and the next picture is the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headroom.tools.server.client import Client, PromptFailed, Workflow

from ..host.workflows import node, text_to_image
from .conftest import CardServer

VRAM_MB = 768.0
ARGS = ("--fp32-unet", "--reserve-vram", "0")


def picture(client: Client, workflow: Workflow) -> bytes:
    return client.file(client.run(workflow).outputs["7"]["images"][0])


def test_a_card_that_is_full_is_told_of(card_server_in: Callable[[Path], CardServer], tmp_path: Path) -> None:
    fits, too_large = text_to_image(save_latent=False), text_to_image(side=512, save_latent=False)
    too_large["4"]["inputs"]["batch_size"] = 32
    # Work with the picture alone, of no model: a blur of what does not fit a second time.
    other = {"1": node("EmptyImage", width=4096, height=4096, batch_size=2, color=0)}
    other["2"] = node("ImageBlur", image=["1", 0], blur_radius=15, sigma=3.0)
    other["3"] = node("PreviewImage", images=["2", 0])
    with card_server_in(tmp_path)(args=ARGS, vram_mb=VRAM_MB) as server:
        client = Client(server.url, timeout=300)
        before = picture(client, fits)
        with pytest.raises(PromptFailed) as failure:
            client.run(too_large)
        assert "OutOfMemory" in failure.value.exception_type
        said = "Headroom: Make It Fit, for node 5 (KSampler) would pick settings that fit this card without changing"
        assert said in failure.value.exception_message
        with pytest.raises(PromptFailed) as failure:
            client.run(other)
        assert "OutOfMemory" in failure.value.exception_type
        assert "Headroom:" not in failure.value.exception_message  # nothing of ours would help there
        client.free()
        assert picture(client, fits) == before
