"""Local Attention (approximate, experimental)."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host.attention.local import apply_local_attention, make_pattern
from .given import checked
from .where import blocks_input, step_inputs


def _whole(name: str, default: int, low: int, high: int, tooltip: str) -> io.Int.Input:
    return io.Int.Input(name, default=default, min=low, max=high, tooltip=tooltip)


def _radius() -> io.Int.Input:
    return _whole("radius", 8, 1, 256, "Cells seen around a block of queries, at least. 1024 px are 128 cells.")


def _block() -> io.Int.Input:
    return _whole("block", 16, 1, 256, "Rows and columns of a block of queries: smaller is faster and sees less.")


def _frames() -> io.Int.Input:
    return _whole("frames", 0, 0, 256, "Frames of a video seen before and after; 0: all.")


def _every() -> io.Int.Input:
    return _whole(
        "every", 8, 1, 256, "A token every so many rows and columns sees all and is seen by all; 8: one in 64."
    )


def _patterns() -> list[io.DynamicCombo.Option]:
    option = io.DynamicCombo.Option
    return [
        option("window", [_radius(), _block(), _frames()]),
        option(
            "kv_pool",
            [_whole("factor", 2, 1, 16, "Averages keys and values over factor x factor cells; 2: a quarter of them.")],
        ),
        option(
            "strided",
            [_whole("stride", 2, 1, 32, "Tokens this many rows and columns apart see each other; 2: a quarter.")],
        ),
        option(
            "local_pool",
            [_radius(), _block(), _frames(), _whole("pool", 4, 1, 32, "What is farther is averaged over pool x pool.")],
        ),
        option(
            "block_sparse",
            [
                _block(),
                io.Float.Input(
                    "keep",
                    default=0.25,
                    min=0.01,
                    max=1.0,
                    step=0.01,
                    tooltip="Share of the key blocks that a block of queries sees, the best by their means; 1: all.",
                ),
            ],
        ),
        option("local_global", [_radius(), _block(), _frames(), _every()]),
        option(
            "bigbird",
            [
                _radius(),
                _block(),
                _frames(),
                _every(),
                _whole("random", 64, 0, 4096, "Keys drawn at random that a block of queries also sees."),
            ],
        ),
        option(
            "kmeans",
            [
                _whole("clusters", 32, 1, 1024, "Clusters the keys are divided into."),
                _whole("top", 4, 1, 1024, "Clusters that a query sees, the best by their centres; 4 of 32: an eighth."),
            ],
        ),
    ]


class HeadroomLocalAttention(io.ComfyNode):
    """APPROXIMATE: self-attention in which each part of the picture sees its surroundings instead of everything, for
    resolutions where dense attention takes too long. The picture changes; experimental.

    On the first step the relative error is measured on 64 rows of each block and shown in the Memory Report; blocks
    above max_error run dense from the second step on. Text is always seen whole. Calls with a mask, with reference
    pictures, or of a model whose sequences are not known stay dense, and the report says why. Not the same as
    HyperTile or ToMe: neighbouring blocks overlap, so there are no seams between them."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomLocalAttention",
            display_name="Local Attention (approximate, experimental)",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["sparse attention", "window attention", "sliding tile", "neighborhood attention", "todo"],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="From any loader; what other nodes patched in it stays. A model whose sequences are not"
                    " known stays dense.",
                ),
                io.DynamicCombo.Input(
                    "pattern",
                    options=_patterns(),
                    tooltip="window: the cells around. kv_pool: everything, averaged 2 x 2. strided: every second"
                    " token. local_pool: the cells around, the rest averaged. block_sparse: the blocks that matter"
                    " most. local_global, bigbird: a window and some tokens that all see. kmeans: clusters of keys.",
                ),
                io.Float.Input(
                    "max_error",
                    default=0.1,
                    min=0.0,
                    max=10.0,
                    step=0.01,
                    tooltip="Blocks whose measured relative error is larger run dense from the second step on. 0.1: a"
                    " tenth of the attention's size.",
                ),
                blocks_input(),
                *step_inputs(" The composition is made in the first steps: 0.3 leaves them dense."),
                io.Int.Input(
                    "min_tokens",
                    default=4096,
                    min=0,
                    max=1048576,
                    tooltip="Calls with fewer tokens stay dense, where local attention gains little. A 1024 px picture"
                    " has 16384 in a UNet's first blocks and 4096 in Flux.",
                ),
            ],
            outputs=[io.Model.Output(tooltip="A copy of the model; the input is unchanged.")],
        )

    @classmethod
    @checked
    def execute(cls, model: Any, pattern: dict[str, Any], **settings: Any) -> io.NodeOutput:
        parameters = {name: value for name, value in pattern.items() if name != "pattern"}
        return io.NodeOutput(apply_local_attention(model, make_pattern(pattern["pattern"], **parameters), **settings))
