"""Storage of weights: what is cast and what stays, copies on the same storages, files, and the report."""

import json
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from headroom.benchmarks._noise import sqnr_db
from headroom.offload import (
    STORAGES,
    CastLayer,
    CastReport,
    GroupCost,
    Layer,
    LayerKind,
    SkipRules,
    block_lists,
    cast_plain,
    copy_structure,
    fingerprint,
    keep_for_error,
    keep_for_size,
    missing_in_torch,
    output_db,
    plan_layers,
    ranked,
)
from headroom.offload.layers import CONVOLUTION_SHARE, FEWEST_WEIGHTS, MODULATION_SHARE, cast_layers
from headroom.offload.safetensors_stream import SafetensorsWriter, header_room

WIDTH = 64  # WIDTH * WIDTH is just enough weights for a layer to be cast
AUTO = SkipRules.parse("auto")
NOTHING = SkipRules.parse("")
VECTOR = "norm or other vector"
OUTSIDE = "first, last or embedder: outside the blocks"


class Parts(nn.Module):
    """A module with these children."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


class OtherParts(Parts):
    pass


class Scale(nn.Module):
    """A weight of one dimension, like a norm's."""

    def __init__(self, size: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class Lookup(nn.Module):
    """A matrix in a class that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))


def linear(rows: int = WIDTH, columns: int = WIDTH) -> nn.Linear:
    return nn.Linear(columns, rows)


def stream(prefix: str) -> dict[str, nn.Module]:
    return {
        f"{prefix}_mod": Parts(lin=linear(6 * WIDTH)),
        f"{prefix}_norm1": nn.LayerNorm(WIDTH),
        f"{prefix}_attn": Parts(qkv=linear(3 * WIDTH), norm=Parts(query_norm=Scale(), key_norm=Scale()), proj=linear()),
        f"{prefix}_mlp": nn.Sequential(linear(4 * WIDTH), nn.GELU(), linear(WIDTH, 4 * WIDTH)),
    }


def diffusion_transformer() -> Parts:
    return Parts(
        img_in=linear(),
        txt_in=linear(),
        time_in=Parts(in_layer=linear(), out_layer=linear()),
        double_blocks=nn.ModuleList(Parts(**stream("img"), **stream("txt")) for _ in range(2)),
        single_blocks=nn.ModuleList(
            Parts(linear1=linear(7 * WIDTH), pre_norm=nn.LayerNorm(WIDTH), linear2=linear(WIDTH, 5 * WIDTH))
            for _ in range(3)
        ),
        final_layer=Parts(
            norm_final=Scale(), adaLN_modulation=nn.Sequential(nn.SiLU(), linear(2 * WIDTH)), linear=linear()
        ),
    )


def res_block() -> Parts:
    return Parts(
        in_layers=nn.Sequential(nn.GroupNorm(8, WIDTH), nn.SiLU(), nn.Conv2d(WIDTH, WIDTH, 3)),
        emb_layers=nn.Sequential(nn.SiLU(), linear(WIDTH, 4 * WIDTH)),
        out_layers=nn.Sequential(nn.GroupNorm(8, WIDTH), nn.SiLU(), nn.Dropout(), nn.Conv2d(WIDTH, WIDTH, 3)),
    )


def spatial_transformer() -> OtherParts:
    block = Parts(
        attn1=Parts(to_q=linear(), to_k=linear(), to_v=linear(), to_out=nn.Sequential(linear(), nn.Dropout())),
        ff=Parts(net=nn.Sequential(Parts(proj=linear(8 * WIDTH)), nn.Dropout(), linear(WIDTH, 4 * WIDTH))),
        norm1=nn.LayerNorm(WIDTH),
    )
    return OtherParts(
        norm=nn.GroupNorm(8, WIDTH), proj_in=linear(), transformer_blocks=nn.ModuleList([block]), proj_out=linear()
    )


def unet() -> Parts:
    return Parts(
        time_embed=nn.Sequential(linear(4 * WIDTH), nn.SiLU(), linear(4 * WIDTH, 4 * WIDTH)),
        input_blocks=nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(8, WIDTH, 3)),
                nn.Sequential(res_block(), spatial_transformer()),
                nn.Sequential(OtherParts(op=nn.Conv2d(WIDTH, WIDTH, 3))),
            ]
        ),
        middle_block=nn.Sequential(res_block(), spatial_transformer(), res_block()),
        output_blocks=nn.ModuleList(nn.Sequential(res_block(), spatial_transformer()) for _ in range(2)),
        out=nn.Sequential(nn.GroupNorm(8, WIDTH), nn.SiLU(), nn.Conv2d(WIDTH, 8, 3)),
    )


def t5_block(first: bool) -> Parts:
    projections = {name: linear() for name in "qkvo"}
    bias = {"relative_attention_bias": nn.Embedding(WIDTH, WIDTH)} if first else {}
    return Parts(
        layer=nn.ModuleList(
            [
                Parts(SelfAttention=Parts(**projections, **bias), layer_norm=Scale()),
                OtherParts(
                    DenseReluDense=Parts(wi_0=linear(2 * WIDTH), wi_1=linear(2 * WIDTH), wo=linear(WIDTH, 2 * WIDTH)),
                    layer_norm=Scale(),
                ),
            ]
        )
    )


def t5_encoder() -> Parts:
    return Parts(
        shared=nn.Embedding(100, WIDTH),
        encoder=Parts(block=nn.ModuleList(t5_block(i == 0) for i in range(3)), final_layer_norm=Scale()),
    )


def plan(root: nn.Module, skip: SkipRules = AUTO) -> dict[str, Layer]:
    return {layer.name: layer for layer in plan_layers(root, skip)}


def cast_names(layers: dict[str, Layer]) -> set[str]:
    return {layer.name for layer in cast_layers(layers.values())}


def blocks_of(**children: Callable[[], nn.Module]) -> Parts:
    """Two blocks with these children each, and nothing around them."""
    return Parts(blocks=nn.ModuleList(Parts(**{name: make() for name, make in children.items()}) for _ in range(2)))


class TestSkipRules:
    def test_auto_alone(self) -> None:
        assert SkipRules.parse("auto") == SkipRules(auto=True, patterns=())

    @pytest.mark.parametrize("text", ["", "\n", "  \n\t\n"])
    def test_an_empty_text_skips_nothing(self, text: str) -> None:
        assert SkipRules.parse(text) == SkipRules(auto=False, patterns=())

    def test_patterns_and_auto_stand_in_any_order_among_empty_lines(self) -> None:
        rules = SkipRules.parse("\n img_in \r\n\n  auto\nblocks\\.[01]\\.\n")
        assert rules == SkipRules(auto=True, patterns=("img_in", r"blocks\.[01]\."))

    def test_auto_is_a_whole_line(self) -> None:
        assert SkipRules.parse("autoencoder") == SkipRules(auto=False, patterns=("autoencoder",))

    def test_the_first_pattern_found_anywhere_in_a_name_is_told(self) -> None:
        rules = SkipRules.parse("qkv$\nattn")
        assert rules.pattern_for("blocks.3.attn.qkv") == "qkv$"
        assert rules.pattern_for("blocks.3.attn.qkv.0") == "attn"
        assert rules.pattern_for("blocks.3.mlp") is None

    @pytest.mark.parametrize("line", ["(", "[a", "*.x", "a{2,1}", "x{99999999999999999999}"])
    def test_a_line_that_does_not_compile_is_named(self, line: str) -> None:
        with pytest.raises(ValueError, match="skip") as error:
            SkipRules.parse(f"auto\n\n{line}\nfine")
        message = str(error.value)
        assert "line 3" in message
        assert line in message
        assert "\n" not in message


class TestPlanOfATransformer:
    def test_the_blocks_are_cast(self) -> None:
        doubles = {
            f"double_blocks.{i}.{side}_{part}"
            for i in range(2)
            for side in ("img", "txt")
            for part in ("mod.lin", "attn.qkv", "attn.proj", "mlp.0", "mlp.2")
        }
        singles = {f"single_blocks.{i}.linear{j}" for i in range(3) for j in (1, 2)}
        layers = plan(diffusion_transformer())
        assert cast_names(layers) == doubles | singles
        assert {layers[name].kind for name in doubles | singles} == {LayerKind.LINEAR}

    def test_every_other_layer_says_why_it_stays(self) -> None:
        layers = plan(diffusion_transformer())
        kept = {name: layer.reason for name, layer in layers.items() if layer.reason is not None}
        vectors = {name for name, reason in kept.items() if reason == VECTOR}
        # Per double block and stream a norm and two of queries and keys; one per single block; the last one.
        assert len(vectors) == 2 * 2 * 3 + 3 + 1
        assert all("norm" in name for name in vectors)
        assert {name: reason for name, reason in kept.items() if name not in vectors} == {
            "img_in": "embedder",
            "txt_in": "embedder",
            "time_in.in_layer": "embedder",
            "time_in.out_layer": "embedder",
            "final_layer.adaLN_modulation.1": OUTSIDE,
            "final_layer.linear": OUTSIDE,
        }

    def test_groups_are_block_and_role(self) -> None:
        layers = plan(diffusion_transformer())
        block = "double_blocks.1"
        assert {name: layer.group for name, layer in layers.items() if name.startswith(f"{block}.txt")} == {
            f"{block}.txt_mod.lin": f"{block} modulation",
            f"{block}.txt_norm1": f"{block} other",
            f"{block}.txt_attn.qkv": f"{block} attention",
            f"{block}.txt_attn.norm.query_norm": f"{block} attention",
            f"{block}.txt_attn.norm.key_norm": f"{block} attention",
            f"{block}.txt_attn.proj": f"{block} attention",
            f"{block}.txt_mlp.0": f"{block} mlp",
            f"{block}.txt_mlp.2": f"{block} mlp",
        }
        assert layers["single_blocks.2.linear1"].group == "single_blocks.2 other"
        assert layers["img_in"].group == "img_in"
        assert layers["img_in"].block is None

    def test_weights_are_counted_without_biases(self) -> None:
        layers = plan(diffusion_transformer())
        assert layers["double_blocks.0.img_mlp.0"].weights == 4 * WIDTH * WIDTH
        assert layers["double_blocks.0.img_norm1"].weights == WIDTH

    def test_a_refiner_before_the_blocks_counts_as_embedder(self) -> None:
        root = diffusion_transformer()
        root.txt_in = Parts(refiner=nn.ModuleList(Parts(fc1=linear(), fc2=linear()) for _ in range(2)))
        layers = plan(root)
        assert layers["txt_in.refiner.1.fc2"].block == "txt_in.refiner.1"
        assert layers["txt_in.refiner.1.fc2"].reason == "embedder"

    def test_what_is_named_like_an_embedder_inside_a_block_is_cast(self) -> None:
        layers = plan(blocks_of(time_in=linear, attn=linear))
        assert len(cast_names(layers)) == 4

    def test_a_matrix_named_norm_stays(self) -> None:
        layers = plan(blocks_of(norm1=linear, attn=linear, fc=linear))
        assert layers["blocks.0.norm1"].reason == "norm"
        assert layers["blocks.0.attn"].reason is None

    def test_a_matrix_within_a_norm_is_cast(self) -> None:
        layers = plan(blocks_of(norm1=lambda: Parts(linear=linear()), attn=linear))
        assert layers["blocks.0.norm1.linear"].reason is None

    def test_the_role_is_read_within_the_block(self) -> None:
        root = Parts(attention_layers=nn.ModuleList(Parts(fc1=linear(), fc2=linear()) for _ in range(2)))
        assert plan(root)["attention_layers.0.fc1"].group == "attention_layers.0 mlp"

    def test_a_name_that_only_begins_like_modulation_is_none(self) -> None:
        layers = plan(blocks_of(model=lambda: Parts(qkv=linear()), mod=linear, modX=linear, modCX=linear))
        assert layers["blocks.0.mod"].group == "blocks.0 modulation"
        assert layers["blocks.0.modX"].group == "blocks.0 modulation"
        assert layers["blocks.0.modCX"].group == "blocks.0 modulation"
        assert layers["blocks.0.model.qkv"].group == "blocks.0 attention"


class TestModulationShare:
    MODULATION = 2 * WIDTH * WIDTH
    # Rows of each block's other layer at which modulation is the share of the whole.
    ROWS = round(MODULATION * (1 / MODULATION_SHARE - 1) / (2 * WIDTH))

    def plan_with(self, rows: int) -> dict[str, Layer]:
        layers = plan(blocks_of(adaLN_modulation=linear, fc=lambda: linear(rows)))
        assert sum(layer.weights for layer in layers.values()) == self.MODULATION + 2 * WIDTH * rows
        return layers

    def test_below_it_is_kept(self) -> None:
        layers = self.plan_with(self.ROWS + 1)
        assert layers["blocks.0.adaLN_modulation"].reason == "modulation"
        assert layers["blocks.1.adaLN_modulation"].reason == "modulation"
        assert cast_names(layers) == {"blocks.0.fc", "blocks.1.fc"}

    def test_above_it_is_cast(self) -> None:
        assert len(cast_names(self.plan_with(self.ROWS - 1))) == 4

    def test_without_auto_it_is_cast(self) -> None:
        root = blocks_of(adaLN_modulation=linear, fc=lambda: linear(self.ROWS + 1))
        assert len(cast_names(plan(root, NOTHING))) == 4


class TestPlanOfAUnet:
    def test_blocks_are_the_entries_but_the_first(self) -> None:
        lists = block_lists(unet())
        assert lists.paths == ("input_blocks", "middle_block", "output_blocks")
        assert lists.blocks == (
            "input_blocks.1",
            "input_blocks.2",
            "middle_block",
            "output_blocks.0",
            "output_blocks.1",
        )

    def test_entrance_exit_and_time_stay(self) -> None:
        layers = plan(unet())
        kept = {name: layer.reason for name, layer in layers.items() if layer.reason not in (None, VECTOR)}
        assert kept == {
            "input_blocks.0.0": OUTSIDE,
            "out.2": OUTSIDE,
            "time_embed.0": "embedder",
            "time_embed.2": "embedder",
        }

    def test_what_is_cast_in_a_block_and_its_groups(self) -> None:
        layers = plan(unet())
        block = "input_blocks.1"
        inner = f"{block}.1.transformer_blocks.0"
        groups = {name: layer.group for name, layer in layers.items() if layer.block == block and not layer.reason}
        assert groups == {
            f"{block}.0.in_layers.2": f"{block} other",
            f"{block}.0.emb_layers.1": f"{block} modulation",
            f"{block}.0.out_layers.3": f"{block} other",
            f"{block}.1.proj_in": f"{block} attention",
            **{f"{inner}.attn1.{name}": f"{block} attention" for name in ("to_q", "to_k", "to_v", "to_out.0")},
            f"{inner}.ff.net.0.proj": f"{block} mlp",
            f"{inner}.ff.net.2": f"{block} mlp",
            f"{block}.1.proj_out": f"{block} attention",
        }
        assert layers["input_blocks.2.0.op"].reason is None
        assert layers["middle_block.2.out_layers.3"].group == "middle_block other"
        assert layers["middle_block.2.out_layers.3"].reason is None

    def test_small_convolutions_are_spared_where_they_get_no_scales(self) -> None:
        layers = plan_layers(unet(), SkipRules.parse("auto"), spare_convolutions=True)
        convolutions = [
            layer for layer in plan(unet()).values() if layer.kind is LayerKind.CONVOLUTION and not layer.reason
        ]
        spared = [layer for layer in layers if layer.reason == "small convolution"]
        assert spared
        assert all(layer.kind is LayerKind.CONVOLUTION for layer in spared)
        assert sum(layer.weights for layer in spared) <= CONVOLUTION_SHARE * sum(layer.weights for layer in layers)
        smallest = sorted(layer.weights for layer in convolutions)[: len(spared)]
        assert sorted(layer.weights for layer in spared) == smallest
        by_hand = plan_layers(unet(), SkipRules.parse(""), spare_convolutions=True)
        assert not [layer for layer in by_hand if layer.reason == "small convolution"]

    def test_convolutions_are_told_from_linear_layers(self) -> None:
        layers = plan(unet())
        assert layers["output_blocks.1.0.in_layers.2"].kind is LayerKind.CONVOLUTION
        assert layers["output_blocks.1.1.proj_in"].kind is LayerKind.LINEAR


class TestPlanOfATextEncoder:
    def test_projections_are_cast_and_nothing_else(self) -> None:
        parts = [f"layer.0.SelfAttention.{name}" for name in "qkvo"]
        parts += [f"layer.1.DenseReluDense.{name}" for name in ("wi_0", "wi_1", "wo")]
        layers = plan(t5_encoder())
        assert cast_names(layers) == {f"encoder.block.{i}.{part}" for i in range(3) for part in parts}

    def test_embeddings_and_norms_stay(self) -> None:
        layers = plan(t5_encoder())
        embeddings = {name for name, layer in layers.items() if layer.reason == "embedding, read by row"}
        assert embeddings == {"shared", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"}
        assert layers["shared"].kind is LayerKind.EMBEDDING
        assert layers["encoder.final_layer_norm"].reason == VECTOR

    def test_groups(self) -> None:
        groups = Counter(layer.group for layer in cast_layers(plan(t5_encoder()).values()))
        assert groups == {
            f"encoder.block.{i} {role}": n for i in range(3) for role, n in (("attention", 4), ("mlp", 3))
        }


class TestPlan:
    def test_a_pattern_alone_leaves_everything_else_to_be_cast(self) -> None:
        layers = plan(diffusion_transformer(), SkipRules.parse(r"double_blocks\.0\."))
        assert layers["double_blocks.0.img_attn.qkv"].reason == r"skip double_blocks\.0\."
        assert layers["double_blocks.0.img_norm1"].reason == VECTOR
        assert {"double_blocks.1.img_attn.qkv", "img_in", "time_in.in_layer", "final_layer.linear"} <= cast_names(
            layers
        )

    def test_a_pattern_adds_to_auto(self) -> None:
        with_pattern = plan(diffusion_transformer(), SkipRules.parse("auto\nimg_attn\\.qkv"))
        alone = cast_names(plan(diffusion_transformer()))
        assert cast_names(with_pattern) == {name for name in alone if not name.endswith("img_attn.qkv")}
        assert with_pattern["double_blocks.1.img_attn.qkv"].reason == "skip img_attn\\.qkv"

    def test_a_pattern_is_named_before_the_structure(self) -> None:
        assert plan(diffusion_transformer(), SkipRules.parse("auto\nimg_in"))["img_in"].reason == "skip img_in"

    def test_without_a_block_list_the_rest_is_cast(self) -> None:
        root = Parts(x_embedder=linear(), norm_out=linear(), body=Parts(a=linear(), b=OtherParts(c=linear())))
        assert block_lists(root).blocks == ()
        layers = plan(root)
        assert cast_names(layers) == {"body.a", "body.b.c"}
        assert layers["x_embedder"].reason == "embedder"
        assert layers["norm_out"].reason == "norm"

    @pytest.mark.parametrize("skip", [AUTO, NOTHING, SkipRules.parse("elsewhere")])
    def test_embeddings_vectors_small_and_unknown_layers_are_never_cast(self, skip: SkipRules) -> None:
        root = blocks_of(
            fc=linear,
            table=lambda: nn.Embedding(1000, WIDTH),
            gain=lambda: Scale(2 * FEWEST_WEIGHTS),
            few=lambda: linear(WIDTH - 1),
            kernel=lambda: nn.Conv2d(8, 8, 3),
            lookup=Lookup,
        )
        layers = plan(root, skip)
        assert {name.rpartition(".")[2]: layer.reason for name, layer in layers.items()} == {
            "fc": None,
            "table": "embedding, read by row",
            "gain": VECTOR,
            "few": "small",
            "kernel": "small",
            "lookup": "a kind of layer that cannot be cast",
        }

    def test_the_fewest_weights_are_enough(self) -> None:
        assert FEWEST_WEIGHTS == WIDTH * WIDTH
        assert plan(blocks_of(fc1=linear, fc2=linear))["blocks.0.fc1"].reason is None

    def test_a_layer_by_itself_is_no_network(self) -> None:
        assert plan_layers(linear(), NOTHING) == []

    def test_the_caller_says_what_can_be_cast(self) -> None:
        kind_of = lambda module: LayerKind.LINEAR if isinstance(module, Lookup) else None  # noqa: E731
        layers = plan_layers(blocks_of(lookup=Lookup, fc=linear), AUTO, kind_of)
        assert {layer.name for layer in cast_layers(layers)} == {"blocks.0.lookup", "blocks.1.lookup"}

    def test_a_shared_layer_is_decided_once(self) -> None:
        root = blocks_of(fc1=linear, fc2=linear)
        root.blocks[1].fc1 = root.blocks[0].fc1
        names = [layer.name for layer in plan_layers(root, AUTO)]
        assert names == ["blocks.0.fc1", "blocks.0.fc2", "blocks.1.fc2"]


class TestBlockLists:
    @staticmethod
    def block() -> Parts:
        return Parts(a=linear(), b=linear())

    def test_of_nested_lists_only_the_outermost(self) -> None:
        inner = lambda: nn.ModuleList([self.block(), self.block()])  # noqa: E731
        root = Parts(deep=Parts(layers=nn.ModuleList([Parts(inner=inner()), Parts(inner=inner())])))
        lists = block_lists(root)
        assert lists.paths == ("deep.layers",)
        assert lists.blocks == ("deep.layers.0", "deep.layers.1")

    def test_a_list_inside_something_else_is_found(self) -> None:
        assert block_lists(Parts(net=nn.ModuleList([Parts(x=nn.Sequential(self.block(), self.block()))]))).blocks == (
            "net.0.x.0",
            "net.0.x.1",
        )

    @pytest.mark.parametrize(
        "children",
        [
            lambda: [Parts(a=linear(), b=linear())],
            lambda: [Parts(a=linear(), b=linear()), OtherParts(a=linear(), b=linear())],
            lambda: [Parts(a=linear(), b=linear()), Parts(a=linear(), b=nn.LayerNorm(WIDTH))],
            lambda: [linear(), linear()],
            lambda: [],
        ],
        ids=["one block", "two classes", "one layer", "layers", "empty"],
    )
    def test_what_is_no_list_of_blocks(self, children: Callable[[], list[nn.Module]]) -> None:
        assert block_lists(Parts(list=nn.ModuleList(children()))).paths == ()

    @pytest.mark.parametrize("kind", [nn.ModuleList, lambda blocks: nn.Sequential(*blocks)])
    def test_lists_and_sequences(self, kind: Callable[[list[nn.Module]], nn.Module]) -> None:
        assert block_lists(Parts(x=kind([self.block(), self.block()]))).blocks == ("x.0", "x.1")

    def test_dictionaries_keep_their_keys(self) -> None:
        root = Parts(x=nn.ModuleDict({"first": self.block(), "second": self.block()}))
        assert block_lists(root).blocks == ("x.first", "x.second")

    def test_a_plain_module_with_equal_children_is_none(self) -> None:
        assert block_lists(Parts(x=Parts(a=self.block(), b=self.block()))).paths == ()

    def test_the_block_of_a_name(self) -> None:
        lists = block_lists(Parts(x=nn.ModuleList(self.block() for _ in range(11))))
        assert lists.block_of("x.1.a") == "x.1"
        assert lists.block_of("x.10.a") == "x.10"
        assert lists.block_of("x.10") == "x.10"
        assert lists.block_of("x") is None
        assert lists.block_of("y.1.a") is None


class Twisted(nn.Module):
    """All that makes a tree hard to copy: ties, a module in two places, buffers, and modules among plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.again = self.first
        self.norm = nn.LayerNorm(6)
        self.last = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 3))
        self.frozen = nn.Parameter(torch.randn(6), requires_grad=False)
        self.register_buffer("scale", torch.rand(6) + 0.5)
        self.register_parameter("absent", None)
        self.chain = [self.first, self.norm]
        self.pair = (self.second, "text")
        self.choice = {"last": self.last, "number": 3}
        self.several = {self.norm}
        self.project = self.last[0].forward
        self.cache = {"large": torch.ones(3)}
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.chain:
            x = module(x)
        x = self.project(self.pair[0](x) * self.scale + self.frozen)
        for module in self.several:
            x = module(x)
        return self.choice["last"](self.again(x))

    def note(self, module: nn.Module, arguments: Any, out: torch.Tensor) -> None:
        self.seen += 1


class Weights(nn.Module):
    """Uses parameters by way of a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(4))
        self.listed = [self.a]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.listed[0]


class TestCopyStructure:
    @pytest.fixture
    def root(self) -> Twisted:
        torch.manual_seed(0)
        return Twisted()

    @pytest.fixture
    def x(self) -> torch.Tensor:
        return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))

    def test_the_copy_computes_the_same(self, root: Twisted, x: torch.Tensor) -> None:
        copy = copy_structure(root)
        assert type(copy) is Twisted
        assert torch.equal(copy(x), root(x))
        assert list(copy.state_dict()) == list(root.state_dict())
        assert [name for name, _ in copy.named_modules()] == [name for name, _ in root.named_modules()]

    def test_weights_of_a_class_of_their_own_keep_their_attributes(self, root: Twisted) -> None:
        class Packed(torch.Tensor):
            def detach(self) -> torch.Tensor:
                return self

        weight = nn.Parameter(torch.zeros(9, dtype=torch.uint8).as_subclass(Packed), requires_grad=False)
        weight.stored_as, weight.patches, weight._note = "q4", [root.first], 1
        root.first.weight = weight
        copy = copy_structure(root, forget={"_note"})
        mine = copy.first.weight
        assert type(mine) is Packed
        assert mine is not weight
        assert mine.data_ptr() == weight.data_ptr()
        assert isinstance(mine, nn.Parameter)
        assert (mine.stored_as, mine.patches) == ("q4", [copy.first])
        assert not hasattr(mine, "_note")

    def test_storages_are_shared_and_parameters_are_not(self, root: Twisted) -> None:
        copy = copy_structure(root)
        for (name, mine), (_, theirs) in zip(copy.named_parameters(), root.named_parameters(), strict=True):
            assert mine is not theirs, name
            assert isinstance(mine, nn.Parameter)
            assert mine.data_ptr() == theirs.data_ptr(), name
            assert mine.requires_grad == theirs.requires_grad, name
        assert not {id(module) for module in copy.modules()} & {id(module) for module in root.modules()}

    @pytest.mark.parametrize(
        "change",
        [
            lambda copy: copy.last.__setitem__(0, nn.Linear(6, 6)),
            lambda copy: setattr(copy, "second", nn.Identity()),
            lambda copy: setattr(copy.first, "weight", nn.Parameter(torch.zeros(6, 6))),
            lambda copy: delattr(copy, "norm"),
            lambda copy: copy.to(torch.float64),
            lambda copy: [setattr(p, "data", torch.zeros_like(p)) for p in copy.parameters()],
            lambda copy: setattr(copy, "scale", torch.zeros(6)),
            lambda copy: [m.register_forward_hook(lambda *_: torch.zeros(())) for m in copy.modules()],
            lambda copy: [m.register_forward_pre_hook(lambda *_: (torch.zeros(5, 6),)) for m in copy.modules()],
            lambda copy: copy.chain.clear(),
            lambda copy: copy.choice.clear(),
            lambda copy: copy.several.clear(),
            lambda copy: copy.requires_grad_(False),
        ],
        ids=[
            "entry", "attribute", "parameter", "removed", "moved", "data", "buffer", "hooks", "pre-hooks", "list",
            "dictionary", "set", "no gradients",
        ],
    )  # fmt: skip
    def test_no_change_of_the_copy_reaches_the_original(
        self, root: Twisted, x: torch.Tensor, change: Callable[[Any], object]
    ) -> None:
        before, weights = root(x), {name: value.clone() for name, value in root.state_dict().items()}
        gradients = [p.requires_grad for p in root.parameters()]
        change(copy_structure(root))
        assert torch.equal(root(x), before)
        assert all(torch.equal(value, weights[name]) for name, value in root.state_dict().items())
        assert {value.dtype for value in root.state_dict().values()} == {torch.float32}
        assert [p.requires_grad for p in root.parameters()] == gradients

    def test_the_copy_can_be_moved_and_still_runs(self, root: Twisted, x: torch.Tensor) -> None:
        copy = copy_structure(root).to(torch.float64)
        assert {p.dtype for p in copy.parameters()} == {torch.float64}
        torch.testing.assert_close(copy(x.double()), root(x).double(), atol=1e-5, rtol=1e-5)

    def test_a_hook_of_the_copy_is_called_by_the_copy(self, root: Twisted, x: torch.Tensor) -> None:
        copy = copy_structure(root)
        copy.first.register_forward_hook(copy.note)
        root(x)
        copy(x)
        assert (root.seen, copy.seen) == (0, 2)

    def test_a_hook_of_the_original_that_is_a_method_is_led_to_the_copy(self, root: Twisted, x: torch.Tensor) -> None:
        root.first.register_forward_hook(root.note)
        copy = copy_structure(root)
        copy(x)
        assert (root.seen, copy.seen) == (0, 2)

    def test_ties_and_shared_modules_stay_within_the_copy(self, root: Twisted) -> None:
        copy = copy_structure(root)
        assert copy.second.weight is copy.first.weight
        assert copy.second.bias is not copy.first.bias
        assert copy.again is copy.first
        assert copy.first is not root.first
        copy.to(torch.float64)
        assert copy.second.weight is copy.first.weight

    def test_modules_among_plain_attributes_are_the_copys(self, root: Twisted) -> None:
        copy = copy_structure(root)
        assert copy.chain[0] is copy.first
        assert copy.chain[1] is copy.norm
        assert copy.pair == (copy.second, "text")
        assert copy.choice == {"last": copy.last, "number": 3}
        assert copy.several == {copy.norm}
        assert copy.project.__self__ is copy.last[0]

    def test_parameters_among_plain_attributes_are_the_copys(self) -> None:
        root = Weights()
        copy = copy_structure(root)
        assert torch.equal(copy(torch.ones(4)), root(torch.ones(4)))
        assert copy.listed[0] is copy.a

    def test_a_module_beyond_the_tree_is_not_copied(self, root: Twisted) -> None:
        stranger = nn.Linear(2, 2)
        root.chain.append(stranger)
        root.project = stranger.forward
        copy = copy_structure(root)
        assert copy.chain[-1] is stranger
        assert copy.project.__self__ is stranger

    def test_attributes_to_forget_are_left_out_everywhere(self, root: Twisted) -> None:
        root.last[0].cache = 5
        copy = copy_structure(root, forget=("cache", "unknown"))
        assert not hasattr(copy, "cache")
        assert not hasattr(copy.last[0], "cache")
        assert hasattr(root, "cache")
        assert root.last[0].cache == 5
        assert copy_structure(root).cache is not root.cache

    def test_buffers_are_shared_until_they_are_exchanged(self, root: Twisted) -> None:
        copy = copy_structure(root)
        assert copy.scale.data_ptr() == root.scale.data_ptr()
        assert list(dict(copy.named_buffers())) == ["scale"]
        copy.to(torch.float64)
        assert (copy.scale.dtype, root.scale.dtype) == (torch.float64, torch.float32)

    def test_a_buffer_that_is_not_saved_stays_so(self) -> None:
        root = nn.Module()
        root.register_buffer("table", torch.ones(2), persistent=False)
        copy = copy_structure(root)
        assert list(copy.state_dict()) == []
        assert torch.equal(copy.table, torch.ones(2))

    def test_training_and_evaluation_are_kept_apart(self, root: Twisted) -> None:
        root.last.eval()
        copy = copy_structure(root)
        assert [m.training for m in copy.modules()] == [m.training for m in root.modules()]
        assert copy.training
        assert not copy.last.training
        copy.eval()
        assert root.training

    def test_a_copy_of_a_copy(self, root: Twisted, x: torch.Tensor) -> None:
        middle = copy_structure(root)
        last = copy_structure(middle)
        middle.to(torch.float64)
        assert torch.equal(last(x), root(x))
        assert last.first.weight.data_ptr() == root.first.weight.data_ptr()


class TestCastPlain:
    TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16]

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("source", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    def test_within_the_range_it_is_torchs_own(self, source: torch.dtype, dtype: torch.dtype) -> None:
        weight = (torch.randn(4000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 1, 4000)).to(
            source
        )
        cast = cast_plain(weight, dtype)
        assert cast.dtype == dtype
        assert torch.equal(cast.float(), weight.to(dtype).float())

    @pytest.mark.parametrize("dtype", TYPES)
    def test_rounding_is_to_nearest(self, dtype: torch.dtype) -> None:
        held = torch.tensor([1.0, 1.0 + torch.finfo(dtype).eps])
        between = torch.lerp(held[:1], held[1:], torch.tensor([0.25, 0.75]))
        assert torch.equal(cast_plain(between, dtype).float(), held)

    @pytest.mark.parametrize(
        ("dtype", "beyond"),
        [(torch.float8_e4m3fn, math.nan), (torch.float8_e5m2, math.inf), (torch.float16, math.inf)],
    )
    @pytest.mark.parametrize("source", [torch.float64, torch.float32, torch.bfloat16])
    def test_beyond_the_range_it_is_the_largest(self, source: torch.dtype, dtype: torch.dtype, beyond: float) -> None:
        largest = torch.finfo(dtype).max
        weight = torch.tensor([2 * largest, 1e30, -2 * largest, -1e30, 1.0], dtype=source)
        assert cast_plain(weight, dtype).double().tolist() == [largest, largest, -largest, -largest, 1]
        # What it is there to prevent.
        own = weight.to(dtype).double()
        assert own[:2].tolist() == pytest.approx([beyond, beyond], nan_ok=True)

    @pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
    def test_half_precision_reaches_beyond_the_eight_bit_types(self, dtype: torch.dtype) -> None:
        largest = torch.finfo(dtype).max
        assert cast_plain(torch.tensor([65504.0, -65504.0]).half(), dtype).float().tolist() == [largest, -largest]

    def test_bfloat16_holds_the_range_of_float32(self) -> None:
        top = torch.finfo(torch.float32).max
        weight = torch.tensor([1e38, -1e38, 1e-38, top, -top])
        cast = cast_plain(weight, torch.bfloat16)
        largest = torch.finfo(torch.bfloat16).max
        assert cast[3:].float().tolist() == [largest, -largest]
        assert torch.equal(cast[:3], weight[:3].bfloat16())
        assert weight[3].bfloat16().isinf()

    def test_eight_bits_to_other_eight_bits(self) -> None:
        weight = torch.tensor([0.5, 1000.0, -57344.0]).to(torch.float8_e5m2)
        assert cast_plain(weight, torch.float8_e4m3fn).float().tolist() == [0.5, 448, -448]

    def test_the_weight_itself_is_left_alone(self) -> None:
        weight = torch.tensor([1e9, 1.0])
        cast_plain(weight, torch.float16)
        assert weight.tolist() == [1e9, 1]


class TestQuality:
    @pytest.mark.parametrize("exact_dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("stored_dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16])
    def test_it_is_the_formula(self, exact_dtype: torch.dtype, stored_dtype: torch.dtype) -> None:
        exact = torch.randn(70, 90, generator=torch.Generator().manual_seed(0)).to(exact_dtype)
        stored = exact.to(stored_dtype).to(exact_dtype)
        w, s = exact.double(), stored.double()
        noise = (w - s).square().sum().item()
        expected = 10 * math.log10(w.square().sum().item() / noise) if noise else math.inf
        assert sqnr_db(exact, stored) == pytest.approx(expected, abs=1e-4)

    def test_an_error_of_a_tenth_is_20_db(self) -> None:
        exact = torch.randn(1000, generator=torch.Generator().manual_seed(0))
        assert sqnr_db(exact, exact * 1.1) == pytest.approx(20, abs=1e-3)
        assert sqnr_db(exact, torch.zeros(1000)) == pytest.approx(0, abs=1e-9)

    @pytest.mark.parametrize("scale", [1e-30, 1e30])
    def test_squares_beyond_float32_are_no_trouble(self, scale: float) -> None:
        exact = torch.ones(100) * scale
        assert sqnr_db(exact, exact / 2) == pytest.approx(10 * math.log10(4), abs=1e-5)

    def test_equal_tensors_are_exact(self) -> None:
        weight = torch.randn(10)
        assert sqnr_db(weight, weight.clone()) == math.inf
        assert sqnr_db(weight.bfloat16(), weight.bfloat16().float()) == math.inf

    def test_zeros(self) -> None:
        assert sqnr_db(torch.zeros(4), torch.zeros(4)) == math.inf
        assert sqnr_db(torch.zeros(4), torch.ones(4)) < -100

    def test_infinite_noise_is_the_worst_there_is(self) -> None:
        assert sqnr_db(torch.ones(3), torch.tensor([1.0, 1.0, math.inf])) == -math.inf


class TestStorages:
    def test_names_are_the_keys(self) -> None:
        assert all(name == storage.name for name, storage in STORAGES.items())

    def test_plain_formats_know_their_dtype(self) -> None:
        plain = {name: storage.plain_dtype for name, storage in STORAGES.items() if not storage.scaled}
        assert plain == {
            "float8_e4m3fn_unscaled": torch.float8_e4m3fn,
            "float8_e5m2_unscaled": torch.float8_e5m2,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
        }
        for name, dtype in plain.items():
            assert STORAGES[name].bits == 8 * dtype.itemsize
            assert STORAGES[name].plain_dtypes == (dtype,)

    def test_scaled_formats_have_none_but_something_for_layers_without_scales(self) -> None:
        for storage in STORAGES.values():
            if storage.scaled:
                assert storage.plain_dtypes == (torch.float8_e4m3fn, torch.float8_e5m2)
                with pytest.raises(ValueError, match=storage.name):
                    _ = storage.plain_dtype

    def test_only_four_bits_share_a_byte(self) -> None:
        assert [name for name, storage in STORAGES.items() if storage.packed] == ["nvfp4", "asym_w4a8_int8"]

    def test_a_torch_with_all_dtypes_lacks_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch, "float8_e8m0fnu", torch.uint8, raising=False)
        assert {missing_in_torch(storage) for storage in STORAGES.values()} == {None}

    def test_a_torch_without_a_dtype_is_told_in_a_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(torch, "float8_e8m0fnu", raising=False)
        told = {name: missing_in_torch(storage) for name, storage in STORAGES.items()}
        message = told.pop("mxfp8")
        assert message is not None
        assert "\n" not in message
        assert "mxfp8" in message
        assert "torch.float8_e8m0fnu" in message
        assert torch.__version__ in message
        assert any(name in message for name in told)
        assert set(told.values()) == {None}

    def test_the_alternative_can_be_held(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(torch, "float8_e8m0fnu", raising=False)
        monkeypatch.delattr(torch, "float8_e4m3fn")
        told = {name: missing_in_torch(storage) for name, storage in STORAGES.items()}
        possible = {name for name, message in told.items() if message is None}
        assert possible == {"float8_e5m2_unscaled", "bfloat16", "float16"}
        for message in told.values():
            assert message is None or any(name in message for name in possible)


class TestFingerprint:
    @staticmethod
    def weights() -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return {
            "matrix": torch.randn(50, 70, generator=generator),
            "bias": torch.randn(7, generator=generator),
            "half": torch.randn(3, 40, generator=generator).half(),
            "brain": torch.randn(300, generator=generator).bfloat16(),
            "eight": torch.randn(9, 9, generator=generator).to(torch.float8_e4m3fn),
            "range": torch.randn(9, 9, generator=generator).to(torch.float8_e5m2),
            "codes": torch.randint(-100, 100, (33,), generator=generator, dtype=torch.int8),
            "flag": torch.tensor(True),
            "flags": torch.rand(100, generator=generator) > 0.5,
            "scalar": torch.tensor(0.5),
            "empty": torch.zeros(0, 4),
        }

    def test_the_same_weights_have_the_same(self) -> None:
        mark = fingerprint(self.weights().items(), "note")
        assert mark == fingerprint(self.weights().items(), "note")
        assert len(mark) == 64

    @pytest.mark.parametrize("name", [name for name in weights() if name != "empty"])
    def test_a_change_of_any_tensor_shows(self, name: str) -> None:
        changed = self.weights()
        value = changed[name]
        if value.dtype == torch.bool:
            changed[name] = ~value
        elif value.dtype == torch.int8:
            changed[name] = value + 1
        else:
            changed[name] = (value.float() * 1.5 + 0.5).to(value.dtype)
        assert fingerprint(changed.items()) != fingerprint(self.weights().items())

    def test_a_slight_change_of_a_large_tensor_shows(self) -> None:
        weight = torch.randn(500, 500)
        assert fingerprint([("a", weight)]) != fingerprint([("a", weight * (1 + 1e-6))])

    @pytest.mark.parametrize("place", [0, 1, 500, 124_321, 249_999])
    def test_one_value_of_a_large_tensor_shows(self, place: int) -> None:
        """An edit of a few rows, as of one token's embedding, must not find the file of the weights before it."""
        weight = torch.randn(500, 500)
        edited = weight.clone()
        edited.view(-1)[place] += 1
        assert fingerprint([("a", weight)]) != fingerprint([("a", edited)])

    @pytest.mark.parametrize(
        "other",
        [
            [("b", torch.zeros(4, 6))],
            [("a", torch.zeros(6, 4))],
            [("a", torch.zeros(24))],
            [("a", torch.zeros(4, 6, dtype=torch.int32))],
            [("a", torch.zeros(4, 6)), ("b", torch.zeros(0))],
            [],
        ],
        ids=["name", "shape", "dimensions", "dtype", "one more", "none"],
    )
    def test_the_same_bytes_under_another_description_differ(self, other: list[tuple[str, torch.Tensor]]) -> None:
        assert fingerprint([("a", torch.zeros(4, 6))]) != fingerprint(other)

    def test_notes_count(self) -> None:
        notes = [(), ("",), ("x",), ("y",), ("x", "y"), ("y", "x")]
        marks = {fingerprint(self.weights().items(), *texts) for texts in notes}
        assert len(marks) >= len(notes) - 1, "only no note and an empty one may agree"

    def test_layout_and_class_do_not_count(self) -> None:
        weight = torch.randn(40, 30)
        expected = fingerprint([("a", weight)])
        assert fingerprint([("a", weight.T.contiguous().T)]) == expected
        assert fingerprint([("a", nn.Parameter(weight))]) == expected


def every_dtype() -> dict[str, torch.Tensor]:
    """Sizes after which the next tensor would begin anywhere."""
    generator = torch.Generator().manual_seed(0)
    values = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    tensors = {
        "odd": torch.arange(3, dtype=torch.uint8),
        "f32": values(5, 3),
        "e4m3": values(3, 3).to(torch.float8_e4m3fn),
        "f16": values(7).half(),
        "flag": torch.tensor(True),
        "bf16": values(3, 1, 5).bfloat16(),
        "i8": torch.arange(-5, 6, dtype=torch.int8),
        "i64": torch.tensor([2**40, -1]),
        "e5m2": values(1).to(torch.float8_e5m2),
        "scalar": torch.tensor(0.25),
        "nothing": torch.zeros(0, 4),
        "flags": torch.tensor([True, False, True]),
        "f64": values(2).double(),
        "turned": values(4, 6).T,
        "parameter": nn.Parameter(values(3)),
    }
    if hasattr(torch, "float8_e8m0fnu"):
        tensors["e8m0"] = torch.tensor([0.5, 2.0, 8.0]).to(torch.float8_e8m0fnu)
    return tensors


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*flat)


def write(path: Path, tensors: dict[str, torch.Tensor], room: int = 20_000, **metadata: str) -> None:
    with SafetensorsWriter(path, room) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
        writer.metadata.update(metadata)


class TestSafetensorsWriter:
    PADDING = "__headroom_padding"

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "weights.safetensors"

    def test_the_library_reads_it_back(self, path: Path) -> None:
        tensors = every_dtype()
        write(path, tensors)
        read = load_file(path)
        assert {name for name in read if not name.startswith(self.PADDING)} == set(tensors)
        assert [name for name, tensor in tensors.items() if not same(tensor, read[name])] == []

    def test_tensors_can_be_read_one_at_a_time_with_the_metadata(self, path: Path) -> None:
        tensors = every_dtype()
        metadata = {"format": "pt", "note": 'quotes " and ünïcode\n', "empty": ""}
        write(path, tensors, **metadata)
        with safe_open(path, "pt") as file:
            assert file.metadata() == metadata
            assert all(same(file.get_tensor(name), tensor) for name, tensor in tensors.items())

    def test_padding_is_named_as_such(self, path: Path) -> None:
        write(path, {"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(2), "c": torch.ones(2)})
        names = set(load_file(path))
        assert {"a", "b", "c"} < names
        assert all(name.startswith(self.PADDING) for name in names - {"a", "b", "c"})
        assert len(names) == 4

    def test_aligned_tensors_need_no_padding(self, path: Path) -> None:
        write(path, {"a": torch.ones(2, dtype=torch.float64), "b": torch.ones(3), "c": torch.ones(3).half()})
        assert set(load_file(path)) == {"a", "b", "c"}

    @pytest.mark.parametrize("room", [20_000, 20_001, 20_003])
    def test_every_tensor_begins_at_a_multiple_of_its_item_size(self, path: Path, room: int) -> None:
        tensors = every_dtype()
        write(path, tensors, room)
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        assert length >= room
        header = json.loads(data[8 : 8 + length])
        for name, tensor in tensors.items():
            start, end = header[name]["data_offsets"]
            assert (8 + length + start) % tensor.element_size() == 0, name
            assert end - start == tensor.numel() * tensor.element_size()

    def test_an_empty_file(self, path: Path) -> None:
        write(path, {}, note="x")
        assert load_file(path) == {}

    def test_it_appears_when_all_is_written(self, path: Path) -> None:
        with SafetensorsWriter(path, 1000) as writer:
            writer.add("a", torch.ones(3))
            assert not path.exists()
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_an_earlier_file_is_replaced(self, path: Path) -> None:
        write(path, {"a": torch.ones(3)})
        write(path, {"b": torch.zeros(2)})
        assert set(load_file(path)) == {"b"}

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_an_error_leaves_nothing_behind(self, path: Path, error: type[BaseException]) -> None:
        def fail() -> None:
            with SafetensorsWriter(path, 1000) as writer:
                writer.add("a", torch.ones(3))
                raise error

        with pytest.raises(error):
            fail()
        assert list(path.parent.iterdir()) == []

    def test_an_error_leaves_an_earlier_file_as_it_was(self, path: Path) -> None:
        write(path, {"a": torch.ones(3)})
        before = path.read_bytes()
        with pytest.raises(ValueError, match=r"unknown \(torch\.complex64\) cannot be written"):
            write(path, {"b": torch.zeros(2), "unknown": torch.zeros(2, dtype=torch.complex64)})
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]
        assert path.read_bytes() == before

    def test_a_header_that_does_not_fit_leaves_nothing_behind(self, path: Path) -> None:
        with pytest.raises(ValueError, match="header"):
            write(path, every_dtype(), room=64)
        assert list(path.parent.iterdir()) == []

    @pytest.mark.parametrize("letter", ["n", "名"])
    def test_the_room_is_enough_for_many_long_names(self, path: Path, letter: str) -> None:
        # Each float32 after a lone byte, so that half of the entries need padding.
        tensors = {
            f"{letter * 150}.{i}": torch.ones(1, dtype=torch.float32 if i % 2 else torch.uint8) for i in range(2000)
        }
        metadata = "m" * 5000
        write(
            path, tensors, header_room(len(tensors), sum(len(n.encode()) for n in tensors), len(metadata)), m=metadata
        )
        with safe_open(path, "pt") as file:
            assert set(tensors) < set(file.keys())
            assert file.metadata() == {"m": metadata}


def costs_of(*values: tuple[float, int]) -> list[GroupCost]:
    return [GroupCost(f"g{i}", noise, saved) for i, (noise, saved) in enumerate(values)]


def random_costs(count: int, seed: int) -> list[GroupCost]:
    noise, saved = torch.rand(2, count, generator=torch.Generator().manual_seed(seed))
    return [GroupCost(f"g{i}", float(noise[i]), 1 + int(saved[i] * 1000)) for i in range(count)]


def names(costs: Iterable[GroupCost]) -> list[str]:
    return [cost.group for cost in costs]


class TestSensitivity:
    def test_the_most_noise_per_byte_comes_first(self) -> None:
        costs = costs_of((1.0, 100), (0.9, 10), (0.0, 1), (2.0, 1000))
        assert names(ranked(costs)) == ["g1", "g0", "g3", "g2"]
        assert names(costs) == ["g0", "g1", "g2", "g3"]

    def test_a_group_that_saves_nothing_can_be_ranked(self) -> None:
        assert names(ranked(costs_of((0.1, 10), (0.1, 0)))) == ["g1", "g0"]

    def test_noises_of_groups_add_up(self) -> None:
        assert output_db(costs_of((0.01, 1))) == pytest.approx(20)
        assert output_db(costs_of((0.004, 1), (0.006, 1))) == pytest.approx(20)
        assert output_db(costs_of((0.0, 1))) == math.inf
        assert output_db([]) == math.inf

    @pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 16, 57])
    def test_the_fewest_groups_that_reach_a_target_are_kept(self, count: int) -> None:
        costs = random_costs(count, seed=count)
        order = ranked(costs)
        # Between what k - 1 and k kept groups give, so that k is the fewest.
        reached = [output_db(order[k:]) for k in range(count + 1)]
        for k in range(1, count + 1):
            target = reached[k - 1] + 1e-6
            calls: list[frozenset[str]] = []

            def measure(kept: frozenset[str], calls: list[frozenset[str]] = calls) -> float:
                calls.append(kept)
                return output_db(cost for cost in costs if cost.group not in kept)

            assert keep_for_error(costs, target, measure) == set(names(order[:k]))
            assert len(calls) <= math.ceil(math.log2(count)) + 1
            assert len(set(calls)) == len(calls), "a measurement is a run of the model: none is done twice"

    def test_a_target_that_is_never_met_keeps_all(self) -> None:
        costs = random_costs(9, seed=0)
        assert keep_for_error(costs, 40.0, lambda kept: 39.9) == set(names(costs))

    def test_a_target_that_is_met_at_once_keeps_none(self) -> None:
        assert keep_for_error(random_costs(9, seed=0), 40.0, lambda kept: 40.0) == frozenset()

    def test_without_groups_nothing_is_measured(self) -> None:
        def measure(kept: frozenset[str]) -> float:
            raise AssertionError

        assert keep_for_error([], 40.0, measure) == frozenset()

    @pytest.mark.parametrize("limit", [0, 5000, 5001, 8000, 12_345, 10**6])
    def test_a_size_is_never_exceeded_and_no_room_is_left_that_a_group_would_fit(self, limit: int) -> None:
        costs = random_costs(20, seed=3)
        kept = keep_for_size(costs, 5000, limit)
        size = 5000 + sum(cost.saved for cost in costs if cost.group in kept)
        assert size <= limit or not kept
        assert all(size + cost.saved > limit for cost in costs if cost.group not in kept)

    def test_a_group_too_large_is_passed_over_for_smaller_ones(self) -> None:
        costs = costs_of((9.0, 10), (800.0, 1000), (1.0, 20), (0.1, 30))
        assert keep_for_size(costs, 100, 135) == {"g0", "g2"}
        assert keep_for_size(costs, 100, 130) == {"g0", "g2"}
        assert keep_for_size(costs, 100, 129) == {"g0"}
        assert keep_for_size(costs, 100, 1100) == {"g0", "g2", "g3"}

    def test_a_limit_below_the_smallest_keeps_none(self) -> None:
        assert keep_for_size(costs_of((1.0, 1)), 100, 99) == frozenset()


MB, GB = 2**20, 2**30


def planned(name: str, block: str | None, reason: str | None = None) -> Layer:
    return Layer(name, LayerKind.LINEAR, 10_000, block, reason)


def report() -> CastReport:
    kept = [planned(f"in.{i}", None, "embedder") for i in range(5)] + [planned("out", None, "skip out")]
    attention = [planned(f"double_blocks.{i}.img_attn.qkv", f"double_blocks.{i}") for i in range(3)]
    mlp = planned("double_blocks.0.img_mlp.0", "double_blocks.0")
    middle = planned("middle_block.0.conv", "middle_block")
    odd = planned("double_blocks.1.img_mlp.0", "double_blocks.1")
    done = [
        *(CastLayer(layer, "mxfp8", 200 * MB, 100 * MB, db) for layer, db in zip(attention, (30.2, 33.0, 31.5))),
        CastLayer(mlp, "mxfp8", 300 * MB, 150 * MB, math.inf),
        CastLayer(middle, "float8_e5m2", 100 * MB, 50 * MB, 25.5),
        CastLayer(odd, None, 20 * MB, 20 * MB, None, problem="not a multiple of 32"),
    ]
    return CastReport(
        storage=STORAGES["mxfp8"],
        compute=torch.bfloat16,
        bytes_before=2 * GB,
        layers=[*kept, *attention, mlp, middle, odd],
        done=done,
        bytes_after=2 * GB - 500 * MB,
        tensors=42,
        notes=["first note", "second note"],
    )


def line_with(text: str, *parts: str) -> str:
    found = [line for line in text.splitlines() if all(part in line for part in parts)]
    assert len(found) == 1, (parts, text)
    return found[0]


class TestReport:
    def test_the_summary_is_one_line_with_the_totals(self) -> None:
        summary = report().summary()
        assert "\n" not in summary
        for part in ("mxfp8", "bfloat16", "5 layers", "2.00 GB", "1.51 GB", "0.76x"):
            assert part in summary
        assert summary in report().render().splitlines()[0]

    def test_classes_of_storage_are_counted(self) -> None:
        text = report().render()
        assert "900.0 MB -> 450.0 MB" in line_with(text, "mxfp8: 4 tensors")
        assert "100.0 MB -> 50.0 MB" in line_with(text, "float8_e5m2: 1 tensors")
        # 42 tensors but 5; 1548 MB but 500.
        assert "1.02 GB" in line_with(text, "as it was: 37 tensors")

    def test_quality_by_group_over_the_blocks_of_a_list(self) -> None:
        text = report().render()
        attention = line_with(text, "double_blocks attention")
        for part in ("31.5 dB", "30.2 dB", "33.0 dB", "3 layers"):
            assert part in attention
        assert attention.index("31.5 dB") < attention.index("30.2 dB") < attention.index("33.0 dB")
        assert "exact" in line_with(text, "double_blocks mlp")
        assert "25.5 dB" in line_with(text, "middle_block other")

    def test_what_stayed_says_why(self) -> None:
        assert report().kept() == {
            "embedder": [f"in.{i}" for i in range(5)],
            "skip out": ["out"],
            "not a multiple of 32": ["double_blocks.1.img_mlp.0"],
        }
        text = report().render()
        embedders = line_with(text, "embedder: 5")
        assert all(part in embedders for part in ("in.0", "in.1", "in.2", "2 more"))
        assert "in.3" not in embedders
        assert "more" not in line_with(text, "skip out: 1 (out)")
        assert line_with(text, "not a multiple of 32: 1", "double_blocks.1.img_mlp.0")

    def test_notes_stand_out(self) -> None:
        text = report().render()
        assert line_with(text, "first note").startswith("!")
        assert line_with(text, "second note").startswith("!")

    def test_what_the_original_still_holds_is_said(self) -> None:
        assert report().saved_bytes == 1000 * MB
        assert "1000.0 MB" in report().render()

    def test_zero_layers_cast(self) -> None:
        layers = [planned("in", None, "embedder")]
        nothing = CastReport(STORAGES["float16"], torch.float16, 3 * GB, layers, bytes_after=3 * GB, tensors=7)
        assert "float16" in nothing.summary()
        assert "0 layers" in nothing.summary()
        text = nothing.render()
        assert "3.00 GB" in line_with(text, "as it was: 7 tensors")
        assert "in" in line_with(text, "embedder: 1")
        assert "dB" not in text
        assert "still holds" not in text
        assert nothing.saved_bytes == 0

    def test_an_empty_model(self) -> None:
        text = CastReport(STORAGES["mxfp8"], torch.float32, 0, []).render()
        assert "0 layers" in text
