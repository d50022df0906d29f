"""The public contract: node ids, inputs and defaults never change once released."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from headroom.attention import BACKENDS
from headroom.host.attention.backend import BACKEND_CHOICES
from headroom.host.planning.strategies import CASTS
from headroom.nodes import NODES
from headroom.nodes.attention import HeadroomAttention
from headroom.nodes.compare import HeadroomCompare
from headroom.offload import STORAGES
from headroom.tools.templates.locales import every_input

DOCS = Path(__file__).parents[2] / "web" / "docs"
SNAPSHOT = Path(__file__).parent / "contract.json"
# Not part of the contract: words for people.
PROSE = ("tooltip", "description", "search_aliases", "output_tooltips", "python_module", "display_name")


def contract() -> dict:
    """Each node as /object_info serves it, without its prose."""
    served = {node.GET_SCHEMA().node_id: node.GET_NODE_INFO_V1() for node in NODES}
    return {
        name: {key: _bare(info[key]) for key in ("input", "input_order", "output", "output_name")}
        for name, info in served.items()
    }


def _bare(value: object) -> object:
    if isinstance(value, dict):
        return {key: _bare(inner) for key, inner in value.items() if key not in PROSE}
    if isinstance(value, (list, tuple)):
        return [_bare(inner) for inner in value]
    return value


def test_ids_inputs_and_defaults_are_those_of_the_snapshot() -> None:
    """After a deliberate addition, put the JSON that this prints into contract.json."""
    current = json.dumps(contract(), indent=1, sort_keys=True)
    assert current == SNAPSHOT.read_text().rstrip(), current


def test_every_input_and_node_explains_itself() -> None:
    """Sockets and outputs too, and the inputs that a choice of a dynamic combo brings."""
    for node in NODES:
        schema = node.GET_SCHEMA()
        assert schema.description, schema.node_id
        assert schema.category == "headroom"
        for name, one in every_input(schema.inputs):
            assert one.tooltip, (schema.node_id, name)
        for one in schema.outputs:
            assert one.tooltip, (schema.node_id, one.display_name or one.io_type)


@pytest.mark.parametrize("language", ["", "zh", "ja"])
@pytest.mark.parametrize(
    ("node", "choices"),
    [("HeadroomAttention", BACKEND_CHOICES), ("HeadroomCast", STORAGES), ("HeadroomCastCLIP", STORAGES)],
)
def test_help_has_a_row_for_every_choice(node: str, choices: Iterable[str], language: str) -> None:
    """In the registry's order; several may share a row."""
    page = DOCS / node / f"{language}.md" if language else DOCS / f"{node}.md"
    tables = [
        [name for row in rows for name in re.split(", |、", row.split("|")[1].strip())]
        for rows in (block.split("\n") for block in page.read_text(encoding="utf-8").split("\n\n"))
        if all(row.startswith("|") for row in rows if row)
    ]
    assert [names[2:] for names in tables].count(list(choices)) == 1


def test_what_quantises_is_named() -> None:
    inexact = [name for name, backend in BACKENDS.items() if not backend.exact]
    assert all(name in HeadroomAttention.GET_SCHEMA().description for name in inexact)


def test_every_storage_with_scales_is_named_where_it_is_compared() -> None:
    tooltips = {name: one.tooltip for name, one in every_input(HeadroomCompare.GET_SCHEMA().inputs)}
    assert all(name in tooltips["casting"] for name in CASTS)
    assert f"{len(CASTS)} rows" in tooltips["casting"]


def test_combos_do_not_depend_on_the_machine() -> None:
    """They are literals of the schema: the same in a process that sees no accelerator as in one that does."""
    combos = {name: info["input"] for name, info in contract().items()}
    backends = combos["HeadroomAttention"]["required"]["backend"]
    assert backends[1]["options"] == [
        *("auto", "host", "sdpa", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_math"),
        *("xformers", "flash_attn", "sage", "comfy_kitchen", "sliced", "online"),
    ]
    assert combos["HeadroomVAE"]["required"]["method"][1]["options"] == ["auto", "exact", "feathered"]
