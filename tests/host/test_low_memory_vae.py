"""Low-Memory VAE around the host's own VAEs, in process."""

import copy
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import comfy.model_management as model_management
import comfy.sd
import pytest
import torch
from torch import Tensor

from headroom.host.core.device import memory_budget
from headroom.host.measure.runs import LOG
from headroom.host.prediction.stages import own_card
from headroom.host.prediction.vae import Coding, predict_coding
from headroom.host.vae.coding import Coder
from headroom.host.vae.directions import Decode
from headroom.host.vae.settings import VAESettings
from headroom.host.vae.wrapper import decode_latent, is_tileable, low_memory_vae, planned_vae
from headroom.nodes.vae import HeadroomVAEDecode, HeadroomVAEEncode
from headroom.vae.exact.planning.choice import Choice, PlannedBefore
from headroom.vae.exact.planning.remembered import MOST, Remembered, remembered
from headroom.vae.exact.planning.search import Search

from ..nightly import some_of
from .autoencoders import AUTOENCODERS
from .families import VAES, load_vae, psnr

VIDEO = {"wan21": 4, "ltx": 8}  # frames of a latent cell
SMALL = VAESettings(method="feathered", tile_size=128, overlap=64)
DEFAULTS = VAESettings().__dict__


def latent_of(name: str, height: int, width: int, batch: int = 1, cells: int = 2) -> Tensor:
    """Noise of unit variance for a picture of the given pixels."""
    vae = load_vae(name)
    ratio = vae.spacial_compression_decode()
    in_time = (cells,) if name in VIDEO else ()
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, VAES[name], *in_time, height // ratio, width // ratio, generator=generator)


def picture_of(height: int, width: int, frames: int = 1) -> Tensor:
    """A picture with areas and edges, (frames, H, W, 3) in [0, 1]."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    moving = [torch.stack((x, y, 0.5 + 0.5 * torch.sin(18 * x * y + 0.2 * t)), -1) for t in range(frames)]
    images = torch.stack(moving)
    images[:, height // 4 : height // 2, width // 3 : width // 2] = torch.tensor([0.9, 0.2, 0.1])
    return images


def last_lines() -> str:
    row = LOG.rows("", "")[-1]
    return "\n".join(row.lines + row.notices)


@pytest.mark.parametrize("name", VAES)
class TestInOnePiece:
    """method = auto where the whole fits: the stock result, bit for bit."""

    def test_decode(self, name: str) -> None:
        latent = latent_of(name, 160, 96)
        stock = load_vae(name).decode(latent)
        assert torch.equal(low_memory_vae(load_vae(name), VAESettings()).decode(latent), stock)
        assert "in one piece" in last_lines()

    def test_encode_of_an_odd_size(self, name: str) -> None:
        pixels = picture_of(171, 109, frames=5 if name in VIDEO else 1)
        stock = load_vae(name).encode(pixels)
        assert torch.equal(low_memory_vae(load_vae(name), VAESettings()).encode(pixels), stock)


class TestBatch:
    def test_every_image_as_if_alone(self) -> None:
        latent = latent_of("sd", 96, 64, batch=3)
        vae = low_memory_vae(load_vae("sd"), VAESettings())
        together = vae.decode(latent)
        assert torch.equal(together, torch.cat([vae.decode(latent[i : i + 1]) for i in range(3)]))
        assert psnr(together, load_vae("sd").decode(latent)) > 100

    @pytest.mark.parametrize(("batch_slice", "slices"), [(0, [1, 1, 1]), (1, [1, 1, 1]), (2, [2, 1]), (8, [3])])
    def test_slices_of_the_batch(self, monkeypatch: pytest.MonkeyPatch, batch_slice: int, slices: list[int]) -> None:
        """Each of as many images as was asked for; the host is asked for the memory of the largest."""
        vae, latent = load_vae("sd"), latent_of("sd", 96, 64, batch=3)
        stock, decode = vae.decode(latent), vae.first_stage_model.decode
        computed: list[int] = []

        def counted(x: Tensor) -> Tensor:
            computed.append(x.shape[0])
            return decode(x)

        monkeypatch.setattr(vae.first_stage_model, "decode", counted)
        asked = spy_on_loading(monkeypatch)
        assert psnr(low_memory_vae(vae, VAESettings(batch_slice=batch_slice)).decode(latent), stock) > 100
        assert computed == slices
        assert asked == [max(slices) * vae.memory_used_decode((1, 4, 12, 8), vae.vae_dtype)]

    def test_a_batch_of_pictures(self) -> None:
        pixels = picture_of(96, 64, frames=3)
        vae = low_memory_vae(load_vae("sd"), SMALL)
        assert psnr(vae.encode(pixels)[1], vae.encode(pixels[1:2])[0]) > 100


class TestFeathered:
    @pytest.mark.parametrize(
        ("name", "height", "width"),
        some_of([*((name, 192, 160) for name in VAES), ("sd", 328, 136), ("flux", 136, 200)], 2),
    )
    def test_decode_is_near_the_untiled_one(self, name: str, height: int, width: int) -> None:
        latent = latent_of(name, height, width)
        stock = load_vae(name).decode(latent)
        result = low_memory_vae(load_vae(name), SMALL).decode(latent)
        assert result.shape == stock.shape
        assert "feathered (approximate)" in last_lines()
        assert 18 < psnr(result, stock) < 90

    @pytest.mark.parametrize("name", some_of(list(VAES), 2))
    def test_encode_is_near_the_untiled_one(self, name: str) -> None:
        pixels = picture_of(192, 160, frames=5 if name in VIDEO else 1)
        stock = load_vae(name).encode(pixels)
        result = low_memory_vae(load_vae(name), SMALL).encode(pixels)
        assert result.shape == stock.shape
        assert 18 < psnr(result, stock) < 90

    @pytest.mark.parametrize("feather", some_of(["linear", "cosine", "gaussian"], 2))
    def test_feathers(self, feather: str) -> None:
        latent = latent_of("sd", 256, 256)
        settings = VAESettings(method="feathered", tile_size=128, overlap=64, feather=feather)
        assert psnr(low_memory_vae(load_vae("sd"), settings).decode(latent), load_vae("sd").decode(latent)) > 18

    def test_more_overlap_is_nearer(self) -> None:
        latent = latent_of("sd", 384, 128)
        stock = load_vae("sd").decode(latent)
        errors = [
            psnr(
                low_memory_vae(load_vae("sd"), VAESettings("feathered", tile_size=192, overlap=o)).decode(latent), stock
            )
            for o in (0, 128)
        ]
        assert errors[1] > errors[0]

    @pytest.mark.parametrize("name", VIDEO)
    def test_tiles_in_time_are_nearer_than_the_hosts(self, name: str) -> None:
        """Wan's decoder is causal: the earlier of two tiles is right to its end, so they are joined there."""
        cells, per_cell = 8, VIDEO[name]
        latent = latent_of(name, 64, 64, cells=cells)
        stock = load_vae(name).decode(latent)
        settings = VAESettings("feathered", temporal_size=3 * per_cell + 1, temporal_overlap=2 * per_cell)
        ours = low_memory_vae(load_vae(name), settings).decode(latent)
        host = load_vae(name).decode_tiled(latent, tile_x=8, tile_y=8, overlap=0, tile_t=4, overlap_t=2)
        assert ours.shape == stock.shape
        assert psnr(ours, stock) > psnr(host, stock) + (3 if name == "wan21" else 0)

    def test_a_video_is_encoded_in_time_too(self) -> None:
        pixels = picture_of(64, 64, frames=30)  # one frame more than fills its cells
        settings = VAESettings("feathered", temporal_size=12, temporal_overlap=8)
        stock = load_vae("wan21").encode(pixels)
        result = low_memory_vae(load_vae("wan21"), settings).encode(pixels)
        assert result.shape == stock.shape
        assert psnr(result, stock) > 18


def in_fives(cells: int) -> int:
    """As ComfyUI says it of MiniMax H3's tiny autoencoder, since 0.33."""
    return max(1, (cells - 2) // 5 * 17 + 5)


def test_where_cells_give_frames_together_time_is_not_tiled(monkeypatch: pytest.MonkeyPatch) -> None:
    vae = AUTOENCODERS["taehv"].load()
    latent = torch.zeros(1, vae.latent_channels, 12, 40, 24)
    settings = VAESettings("feathered", tile_size=128, temporal_size=16, temporal_overlap=8)

    def tiles_in_time() -> int:
        coder = Coder(Decode(low_memory_vae(vae, settings), {}))
        axes = [coder.tiles.plan(coder.geometry.prepare(latent), least).axes for least in (1, 99)]
        assert all(len(rows.cells) > 1 for _, rows, _ in axes)
        return max(len(time.cells) for time, _, _ in axes)

    assert tiles_in_time() > 1
    monkeypatch.setattr(vae, "upscale_ratio", (in_fives, *vae.upscale_ratio[1:]))
    assert tiles_in_time() == 1


class TestMemory:
    def test_the_host_is_asked_for_a_tile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        vae, latent = load_vae("sd"), latent_of("sd", 512, 512)
        asked = spy_on_loading(monkeypatch)
        low_memory_vae(vae, VAESettings("feathered", tile_size=128, overlap=32)).decode(latent)
        assert asked == [vae.memory_used_decode((1, 4, 16, 16), vae.vae_dtype)]
        assert asked[0] <= vae.memory_used_decode(latent.shape, vae.vae_dtype) / 16

    @pytest.mark.parametrize("name", some_of(list(VAES), 2))
    def test_a_budget_makes_tiles_that_fit_it(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        vae, latent = load_vae(name), latent_of(name, 320, 256)
        whole = vae.memory_used_decode(latent.shape, vae.vae_dtype)
        asked = spy_on_loading(monkeypatch)
        weights = int(vae.patcher.model_size())
        settings = VAESettings(method="feathered", vram_budget_gb=(weights + whole / 2.5) / 2**30)
        result = low_memory_vae(vae, settings).decode(latent)
        assert asked[0] <= whole / 2.5
        assert "feathered (approximate)" in last_lines()
        assert result.shape[-3:] == (320, 256, 3)

    def test_time_is_split_only_when_space_does_not_suffice(self) -> None:
        vae, latent = load_vae("ltx"), latent_of("ltx", 192, 192, cells=9)
        smallest_over_all_frames = vae.memory_used_decode((1, 128, 9, 4, 4), vae.vae_dtype)
        weights = int(vae.patcher.model_size())

        def decode_within(work: float) -> None:
            settings = VAESettings(method="feathered", vram_budget_gb=(weights + work) / 2**30)
            low_memory_vae(vae, settings).decode(latent)

        decode_within(1.01 * smallest_over_all_frames)
        assert "tiles of 65 x 128 x 128 frames x px" in last_lines()
        decode_within(0.6 * smallest_over_all_frames)
        assert "tiles of 65 x" not in last_lines()

    def test_a_budget_no_tile_meets_is_said(self) -> None:
        settings = VAESettings(method="feathered", vram_budget_gb=0.001)
        low_memory_vae(load_vae("sd"), settings).decode(latent_of("sd", 256, 256))
        assert "raise vram_budget_gb" in last_lines()
        with pytest.raises(ValueError, match=r"vram_budget_gb: 0\.001 GB is less than .* raise vram_budget_gb"):
            low_memory_vae(load_vae("sd"), VAESettings(vram_budget_gb=0.001)).decode(latent_of("sd", 256, 256))

    def test_a_budget_of_another_node_is_called_by_its_input_there(self) -> None:
        settings = VAESettings(vram_budget_gb=0.001, budget_name="limit of Make It Fit")
        planned, latent = planned_vae(load_vae("sd"), settings), latent_of("sd", 256, 256)
        with pytest.raises(ValueError, match=r"^limit of Make It Fit: 0\.001 GB is less .* raise limit of Make It Fit"):
            planned.decode(latent)
        with pytest.raises(ValueError, match=r"^vram_budget_gb: 0\.002 GB is less .* raise vram_budget_gb"):
            low_memory_vae(planned, VAESettings(vram_budget_gb=0.002)).decode(latent)

    def test_out_of_memory_leads_to_smaller_tiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        vae, latent = load_vae("sd"), latent_of("sd", 256, 256)
        monkeypatch.setattr(vae.first_stage_model, "decode", failing_above(16 * 32, vae.first_stage_model.decode))
        result = low_memory_vae(vae, VAESettings()).decode(latent)
        assert result.shape == (1, 256, 256, 3)
        assert "out of memory with 1 tiles: tried smaller ones" in last_lines()

    def test_out_of_memory_with_the_smallest_tiles_is_the_hosts_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        vae = load_vae("sd")
        monkeypatch.setattr(vae.first_stage_model, "decode", failing_above(0, vae.first_stage_model.decode))
        with pytest.raises(torch.cuda.OutOfMemoryError):
            low_memory_vae(vae, VAESettings()).decode(latent_of("sd", 256, 256))
        assert LOG.rows("", "")[-1].outcome == "failed"

    def test_other_errors_are_not_retried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        vae = load_vae("sd")

        def broken(x: Tensor) -> Tensor:
            raise RuntimeError("on purpose")

        monkeypatch.setattr(vae.first_stage_model, "decode", broken)
        with pytest.raises(RuntimeError, match="on purpose"):
            low_memory_vae(vae, VAESettings()).decode(latent_of("sd", 64, 64))


class TestWrapper:
    def test_the_input_is_not_changed(self) -> None:
        vae = load_vae("sd")
        before = dict(vae.__dict__)
        wrapped = low_memory_vae(vae, SMALL)
        assert isinstance(wrapped, comfy.sd.VAE)
        assert type(vae) is comfy.sd.VAE
        assert vae.__dict__ == before
        assert wrapped.first_stage_model is vae.first_stage_model

    def test_again_replaces_the_settings(self) -> None:
        wrapped = low_memory_vae(low_memory_vae(load_vae("sd"), SMALL), VAESettings())
        assert type(wrapped).__mro__.count(comfy.sd.VAE) == 1
        latent = latent_of("sd", 256, 256)
        assert torch.equal(wrapped.decode(latent), load_vae("sd").decode(latent))

    def test_a_copy_by_the_host_follows_its_own_attributes(self) -> None:
        """The host's device selection copies a VAE and sets the copy's device."""
        duplicate = copy.copy(low_memory_vae(load_vae("sd"), VAESettings()))
        duplicate.process_output = lambda image: image * 0 + 0.25
        assert (duplicate.decode(latent_of("sd", 64, 64)) == 0.25).all()

    def test_stock_nodes_behind_it_use_its_tiles(self) -> None:
        import nodes

        vae, latent = low_memory_vae(load_vae("sd"), SMALL), latent_of("sd", 192, 128)
        expected = vae.decode(latent)
        samples = {"samples": latent}
        assert torch.equal(nodes.VAEDecode().decode(vae, samples)[0], expected)
        assert torch.equal(nodes.VAEDecodeTiled().decode(vae, samples, 512)[0], expected)
        pixels = picture_of(192, 128)
        encoded = vae.encode(pixels)
        assert torch.equal(nodes.VAEEncode().encode(vae, pixels)[0]["samples"], encoded)
        assert torch.equal(nodes.VAEEncodeTiled().encode(vae, pixels, 512, 64)[0]["samples"], encoded)
        mask = torch.zeros(1, 192, 128)
        assert nodes.VAEEncodeForInpaint().encode(vae, pixels, mask)[0]["samples"].shape == encoded.shape

    def test_shortcuts_give_what_the_wrapper_gives(self) -> None:
        latent, pixels = latent_of("wan21", 96, 64), picture_of(96, 64, frames=5)
        vae = low_memory_vae(load_vae("wan21"), VAESettings())
        decoded = HeadroomVAEDecode.execute({"samples": latent}, load_vae("wan21"), **DEFAULTS).result[0]
        assert decoded.shape == (5, 96, 64, 3)
        assert torch.equal(decoded, decode_latent(vae, {"samples": latent}))
        encoded = HeadroomVAEEncode.execute(pixels, load_vae("wan21"), **DEFAULTS).result[0]
        assert torch.equal(encoded["samples"], vae.encode(pixels))

    def test_cancel_works_between_tiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        vae, ran = load_vae("sd"), 0
        decode = vae.first_stage_model.decode

        def decode_and_cancel(x: Tensor) -> Tensor:
            nonlocal ran
            ran += 1
            model_management.interrupt_current_processing()
            return decode(x)

        monkeypatch.setattr(vae.first_stage_model, "decode", decode_and_cancel)
        with pytest.raises(model_management.InterruptProcessingException):
            low_memory_vae(vae, SMALL).decode(latent_of("sd", 256, 256))
        assert ran == 1
        assert LOG.rows("", "")[-1].outcome == "interrupted"


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"tile_size": 128, "overlap": 128}, r"overlap \(128\) must be smaller than tile_size \(128\)"),
            ({"temporal_size": 8, "temporal_overlap": 9}, r"temporal_overlap \(9\) must be smaller than temporal_size"),
        ],
    )
    def test_settings(self, settings: dict, sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            low_memory_vae(load_vae("sd"), VAESettings(method="feathered", **settings))

    @pytest.mark.parametrize(
        ("shape", "sentence"),
        [
            ((1, 16, 8, 8), "samples: the latent has 16 channels, but this VAE decodes 4"),
            ((0, 4, 8, 8), "samples: the latent is empty"),
            ((1, 4, 8), "samples: this VAE decodes latents of 4 dims"),
        ],
    )
    def test_latents(self, shape: tuple[int, ...], sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            low_memory_vae(load_vae("sd"), VAESettings()).decode(torch.zeros(shape))

    @pytest.mark.parametrize(
        ("shape", "sentence"),
        [((0, 64, 64, 3), "pixels: the image is empty"), ((1, 4, 64, 3), "pixels: 64 x 4 is smaller than the 8 px")],
    )
    def test_pictures(self, shape: tuple[int, ...], sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            low_memory_vae(load_vae("sd"), VAESettings()).encode(torch.zeros(shape))

    def test_edges_that_a_convolution_mirrors(self) -> None:
        """LTX-Video's decoder needs two cells of each side; the host's own node ends in PyTorch's words for that."""
        kind = AUTOENCODERS["ltx"]
        low = low_memory_vae(kind.load(), VAESettings())
        with pytest.raises(ValueError, match="samples: a latent of 32 x 64 px is smaller than the 64 px this"):
            low.decode(kind.latent(2, 1))
        assert low.decode(kind.latent(2, 2)).shape[-3:] == (64, 64, 3)
        assert low.encode(kind.pixels(64, 32)).shape[-2:] == (2, 1)


def spy_on_loading(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The memory that the host is asked for, call by call; the host still loads."""
    asked: list[float] = []
    load = model_management.load_models_gpu

    def spy(models: Any, memory_required: float = 0, **kwargs: Any) -> Any:
        asked.append(memory_required)
        return load(models, memory_required=memory_required, **kwargs)

    monkeypatch.setattr(model_management, "load_models_gpu", spy)
    return asked


def failing_above(cells: int, decode: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def limited(x: Tensor) -> Tensor:
        if x[0, 0].numel() > cells:
            raise torch.cuda.OutOfMemoryError("out of memory, on purpose")
        return decode(x)

    return limited


def test_a_budget_leaves_what_the_host_keeps_free_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    total = model_management.get_total_memory(cpu)
    monkeypatch.setattr(model_management, "EXTRA_RESERVED_VRAM", 3 * 2**30)
    assert total - memory_budget(cpu) == model_management.extra_reserved_memory() >= 3 * 2**30
    assert memory_budget(cpu, 1.5) == 3 * 2**29


class TestPlans:
    """Found once for each computation: of a video that takes seconds."""

    @pytest.fixture
    def searches(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """Those that were made."""
        made: list[Any] = []
        run = Search.run

        def counted(search: Search) -> Any:
            made.append(search)
            return run(search)

        monkeypatch.setattr(Search, "run", counted)
        return made

    def test_a_later_decode_uses_it(self, searches: list[Any]) -> None:
        latent, vae = latent_of("sd", 96, 64), load_vae("sd")
        first = low_memory_vae(vae, VAESettings(method="exact", vram_budget_gb=1.0)).decode(latent)
        there = len(searches)
        assert there
        again = low_memory_vae(vae, VAESettings(method="exact", vram_budget_gb=1.0)).decode(latent)
        assert len(searches) == there
        assert torch.equal(again, first)
        low_memory_vae(vae, VAESettings(method="exact", vram_budget_gb=1.1)).decode(latent)
        low_memory_vae(vae, VAESettings(method="exact", vram_budget_gb=1.0)).decode(latent[..., 1:])
        assert len(searches) == 3 * there, "another budget and another size are other computations"

    def test_a_prediction_leaves_it_for_the_decode(self, searches: list[Any]) -> None:
        latent, vae = latent_of("sd", 64, 96), low_memory_vae(load_vae("sd"), VAESettings(method="exact"))
        predict_coding(Coding(vae, latent), own_card(vae.device))
        there = len(searches)
        assert there
        vae.decode(latent)
        assert len(searches) == there

    def test_it_goes_with_its_module(self) -> None:
        module = torch.nn.Linear(1, 1)
        remembered(module)["key"] = PlannedBefore(Choice(0), (), ())
        gone = weakref.ref(module)
        del module
        gc.collect()
        assert gone() is None

    def test_the_latest_are_kept(self) -> None:
        plans = Remembered()
        for number in range(MOST + 2):
            plans[number] = PlannedBefore(Choice(number), (), ())
        plans[2] = plans[2]
        plans["one more"] = plans[2]
        assert list(plans) == [*range(4, MOST + 2), 2, "one more"]


@pytest.mark.parametrize("of_sound", [{"latent_dim": 1}, {"extra_1d_channel": 16}, {"output_channels": 2}])
def test_a_vae_for_sound_goes_the_hosts_way(of_sound: dict[str, int]) -> None:
    """MiniMax H3's sounds have latents of two sizes, like a picture's, and no channel of their own."""
    picture = {"latent_dim": 2, "extra_1d_channel": None, "output_channels": 3}
    assert is_tileable(SimpleNamespace(**picture))
    assert not is_tileable(SimpleNamespace(**picture | of_sound))
