"""The public contract: node ids, inputs and defaults never change once released."""

import json
from pathlib import Path

from headroom.nodes import NODES
from headroom.tools.templates.locales import every_input

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


def test_combos_do_not_depend_on_the_machine() -> None:
    """They are literals of the schema: the same in a process that sees no accelerator as in one that does."""
    combos = {name: info["input"] for name, info in contract().items()}
    backends = combos["HeadroomAttention"]["required"]["backend"]
    assert backends[1]["options"] == [
        *("auto", "host", "sdpa", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_math"),
        *("xformers", "flash_attn", "sage", "comfy_kitchen", "sliced", "online"),
    ]
    assert combos["HeadroomVAE"]["required"]["method"][1]["options"] == ["auto", "exact", "feathered"]
