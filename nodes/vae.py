"""Low-memory VAE: the wrapper, and its two shortcuts."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host.vae.settings import METHOD_CHOICES, STORE_CHOICES, VAESettings
from ..host.vae.wrapper import decode_latent, low_memory_vae
from ..vae import FEATHERS
from .given import checked


def _vae_input() -> io.Vae.Input:
    return io.Vae.Input(
        "vae",
        tooltip="From any loader, for pictures or video. What is not recognised in it gets whole maps: still right,"
        " with more memory.",
    )


def _settings_inputs() -> list[io.Input]:
    """The widgets that all three nodes share. All but the first may be missing in a graph that is sent to the API."""
    return [
        io.Combo.Input(
            "method",
            options=list(METHOD_CHOICES),
            default="auto",
            tooltip="auto: in one piece where that fits the budget (bit for bit the stock result), else exact;"
            " feathered only where strips are impossible, and the node says so. exact: in strips of rows with the whole"
            " picture's statistics and attention: the same result up to float rounding, no seams; or an error."
            " feathered: overlapping tiles blended in one pass, approximate.",
        ),
        io.Float.Input(
            "vram_budget_gb",
            default=0.0,
            min=0.0,
            max=1024.0,
            step=0.1,
            optional=True,
            advanced=True,
            tooltip="What the VAE may need, weights included, in GB of 2^30 bytes. A smaller budget means lower"
            " strips, then maps computed again instead of stored. Too small a one: with exact an error that names the"
            " least, with auto feathered tiles if they fit. 0: the card's total minus the host's reserve.",
        ),
        io.Int.Input(
            "tile_size",
            default=0,
            min=0,
            max=16384,
            step=32,
            optional=True,
            advanced=True,
            tooltip="exact: height of a strip in pixels of the picture (the result is the same at any height)."
            " feathered: side of a tile. 0: by the budget. auto uses it only where the whole does not fit.",
        ),
        io.Int.Input(
            "overlap",
            default=64,
            min=0,
            max=4096,
            step=8,
            optional=True,
            advanced=True,
            tooltip="feathered only: pixels neighbouring tiles share, at least. An image VAE sees about 140 px around a"
            " pixel: more overlap, fainter seams, more work.",
        ),
        io.Combo.Input(
            "feather",
            options=list(FEATHERS),
            default="cosine",
            optional=True,
            advanced=True,
            tooltip="feathered only: how neighbours fade into each other over the overlap.",
        ),
        io.Int.Input(
            "temporal_size",
            default=0,
            min=0,
            max=16384,
            optional=True,
            advanced=True,
            tooltip="feathered only, video: frames of a tile, rounded up to latent frames. 0: all frames, unless even"
            " the smallest tile would not fit. exact needs no tiles in time.",
        ),
        io.Int.Input(
            "temporal_overlap",
            default=16,
            min=0,
            max=4096,
            optional=True,
            advanced=True,
            tooltip="feathered only, video: frames neighbouring tiles share, 16 or more for Wan. A latent frame is 4"
            " frames in Wan, 8 in LTX-Video.",
        ),
        io.Int.Input(
            "batch_slice",
            default=0,
            min=0,
            max=4096,
            optional=True,
            advanced=True,
            tooltip="Images of a batch computed together. 0: one after the other.",
        ),
        io.Combo.Input(
            "store",
            options=list(STORE_CHOICES),
            default="same",
            optional=True,
            advanced=True,
            tooltip="exact only: how maps are kept for later strips. float16 halves them for a float32 VAE, which is"
            " then near-exact (60 dB and more); without effect on a VAE that runs in 16 bits.",
        ),
    ]


def _on_disk_input() -> io.Boolean.Input:
    return io.Boolean.Input(
        "frames_on_disk",
        default=False,
        optional=True,
        advanced=True,
        tooltip="Keeps decoded frames in a file in ComfyUI's temp folder instead of in memory, 12 bytes a pixel: 721"
        " frames of 1280 x 720 take 7.4 GB of disk. Any node behind it can use them; one that copies all frames still"
        " needs the memory. The file is deleted when the frames are no longer used. feathered tiles stay in memory.",
    )


def _workers_input() -> io.String.Input:
    return io.String.Input(
        "workers",
        default="",
        optional=True,
        advanced=True,
        tooltip="auto and exact: several cards compute one picture or video together, a band of its rows each, with"
        " 1/N of the maps. devices: all of this machine's. Otherwise a name that this server's owner gave to a Ray"
        " cluster in user/headroom/workers.json. Empty: the VAE's device alone.",
    )


class HeadroomVAE(io.ComfyNode):
    """A VAE that encodes and decodes within a memory budget. Every node behind it profits: inpainting,
    image-to-video, detailers, the stock decode; bypass it and the graph is the stock graph again.

    The tiled stock nodes behind it use its method, not their own tiles."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomVAE",
            display_name="Low-Memory VAE (exact)",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["tiled vae", "vae tiling", "out of memory", "seams"],
            inputs=[_vae_input(), *_settings_inputs(), _on_disk_input(), _workers_input()],
            outputs=[io.Vae.Output(tooltip="A shallow copy of the VAE; the input is unchanged.")],
        )

    @classmethod
    @checked
    def execute(cls, vae: Any, **settings: Any) -> io.NodeOutput:
        return io.NodeOutput(low_memory_vae(vae, VAESettings(**settings)))


class HeadroomVAEDecode(io.ComfyNode):
    """Decodes a latent within a memory budget: a shortcut to Low-Memory VAE with a decode behind it. With a
    progress bar, a preview as it grows, and cancel after each strip."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomVAEDecode",
            display_name="VAE Decode (exact, low memory)",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["vae decode tiled", "tiled decode", "latent to image"],
            inputs=[
                io.Latent.Input("samples", tooltip="Pictures or a video; its size decides what the decode needs."),
                _vae_input(),
                *_settings_inputs(),
                _on_disk_input(),
            ],
            outputs=[
                io.Image.Output(tooltip="As from the stock decode: exact up to float rounding, feathered approximate.")
            ],
        )

    @classmethod
    @checked
    def execute(cls, samples: Any, vae: Any, **settings: Any) -> io.NodeOutput:
        return io.NodeOutput(decode_latent(low_memory_vae(vae, VAESettings(**settings)), samples))


class HeadroomVAEEncode(io.ComfyNode):
    """Encodes pictures within a memory budget: a shortcut to Low-Memory VAE with an encode behind it."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomVAEEncode",
            display_name="VAE Encode (exact, low memory)",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["vae encode tiled", "tiled encode", "image to latent"],
            inputs=[
                io.Image.Input("pixels", tooltip="Pictures, or the frames of a video for a video VAE."),
                _vae_input(),
                *_settings_inputs(),
            ],
            outputs=[
                io.Latent.Output(tooltip="As from the stock encode: exact up to float rounding, feathered approximate.")
            ],
        )

    @classmethod
    @checked
    def execute(cls, pixels: Any, vae: Any, **settings: Any) -> io.NodeOutput:
        return io.NodeOutput({"samples": low_memory_vae(vae, VAESettings(**settings)).encode(pixels)})
