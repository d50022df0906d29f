"""What plans take a card to be: by its driver and its link, not by one card for all."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import comfy.model_management as model_management
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from headroom.attention import backends
from headroom.host.attention import in_vae as vae_attention
from headroom.host.core.device import GB
from headroom.host.vae.fallback import BudgetTooSmall
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.wrapper import low_memory_vae
from headroom.memory import link
from headroom.memory.blocks import uncut_bytes
from headroom.tools.card import emulator
from headroom.tools.card.cards import CARDS
from headroom.vae.exact.planning.card import figures_of
from headroom.vae.exact.planning.device import ACCELERATOR, Figures

from ..host.autoencoders import AUTOENCODERS
from ..host.conftest import ENVIRONMENT
from .conftest import Card

DEVICE = torch.device("cuda:0")
MB = 2**20


def told() -> Figures:
    return figures_of(DEVICE, link.link_speed(DEVICE))


def test_the_documented_figures_come_back_from_the_driver(card: Card) -> None:
    documented = CARDS["rtx3060"]
    figures = told()
    assert figures.flops == pytest.approx(documented.single * 1e12, rel=0.01)
    assert figures.bandwidth == pytest.approx(documented.bandwidth * 1e9, rel=0.01)
    assert figures.link == pytest.approx(documented.link * 1e9, rel=0.01)
    assert figures.parts == documented.multiprocessors
    # What a driver does not tell is the usual.
    told_alone = {"flops": 0, "bandwidth": 0, "link": 0, "parts": 0, "workspace": None}
    assert replace(figures, **told_alone) == replace(ACCELERATOR, **told_alone)


def test_a_slower_link_is_seen(card: Card) -> None:
    card.set(h2d=12.6, d2h=25.2)
    assert told().link == pytest.approx(12.6e9)


def test_the_link_is_measured_beside_work_and_without_data(card: Card) -> None:
    """As a prediction asks: tensors are not what they seem there, and a prompt may run."""
    card.set(lazy=True, races=True)
    busy = torch.ones(512, 512, device=DEVICE)
    for _ in range(20):
        busy = busy @ busy * 1e-3
    with FakeTensorMode():
        speed = link.link_speed(DEVICE)
    assert speed == pytest.approx(CARDS["rtx3060"].link * 1e9, rel=0.1)
    assert not card.races
    assert bool(busy.isfinite().all())


def test_measuring_takes_little_and_leaves_nothing(card: Card) -> None:
    before = card.allocated
    card.reset()
    link.link_speed(DEVICE)
    assert card.peak - before <= MB
    assert card.allocated == before


def test_it_is_measured_once(card: Card) -> None:
    link.link_speed(DEVICE)
    card.reset()
    link.link_speed(DEVICE)
    assert card.stats["h2d_pinned"] == [0, 0]


ASKS = """
import torch
from headroom.attention.sdpa import memory_refusal
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    print(memory_refusal(torch.device("cuda:0"), dtype, 512, 512))
"""


@pytest.mark.parametrize(("name", "refused"), [("rtx3060", 0), ("t4", 1)])
def test_torch_says_which_dtypes_have_no_fused_attention(tmp_path: Path, name: str, refused: int) -> None:
    """A T4 has none for bfloat16: torch makes the whole matrix there."""
    (tmp_path / "headroom").symlink_to(ENVIRONMENT.pack, target_is_directory=True)
    answer = subprocess.run(
        [ENVIRONMENT.python, "-c", ASKS], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, **emulator.variables(ENVIRONMENT, name)},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    said = answer.stdout.splitlines()
    assert said[: 3 - refused] == ["None"] * (3 - refused)
    assert said[3 - refused :] == ["cuda has no fused kernel with O(N) memory for torch.bfloat16"] * refused


@pytest.mark.parametrize("way", ["decode", "encode"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_budget_is_kept_without_a_fused_attention(
    card: Card, monkeypatch: pytest.MonkeyPatch, way: str, share: float
) -> None:
    """As on such a card: attention goes by tiles, and the plan counts what they take."""
    for module in (backends, vae_attention):
        monkeypatch.setattr(module, "memory_refusal", lambda *_: "no fused kernel")
    vae = AUTOENCODERS["sd"].load()
    x = AUTOENCODERS["sd"].latent(64, 48) if way == "decode" else torch.zeros(1, 512, 384, 3)

    def run(budget_gb: float) -> Tensor:
        result: Tensor = getattr(low_memory_vae(vae, VAESettings("exact", vram_budget_gb=budget_gb)), way)(x)
        return result

    with pytest.raises(BudgetTooSmall) as error:
        run(1e-6)
    model_management.unload_all_models()  # a clean start: what is left uncut of the weights' blocks is foretold for one
    torch.cuda.empty_cache()
    card.set(shapes=1)
    before = card.allocated
    budget = error.value.least * (1 + share) + MB
    run(budget / GB)
    assert 0.5 * budget <= card.peak - before <= budget


def test_weights_that_do_not_fit_have_a_sentence(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    vae: Any = AUTOENCODERS["sd"].load()
    model_management.unload_all_models()
    torch.cuda.empty_cache()
    sizes = sorted((one.nbytes for one in vae.first_stage_model.parameters()), reverse=True)
    assert sum(sizes) + uncut_bytes(sizes) > 4 * MB
    card.set(vram_mb=torch.cuda.memory_reserved() / MB + 2)
    with pytest.raises(model_management.OOM_EXCEPTION, match=r"vae: its weights \(0\.\d+ GB\) do not fit into cuda:0"):
        low_memory_vae(vae, VAESettings("exact", vram_budget_gb=1.0)).decode(AUTOENCODERS["sd"].latent(8, 8))
    card.set()
    low_memory_vae(vae, VAESettings("exact", vram_budget_gb=1.0)).decode(AUTOENCODERS["sd"].latent(8, 8))
