"""Which lines and leaves of a pass are read last where: against a walk from each of them."""

from __future__ import annotations

import random

import pytest
import torch

from headroom.vae.exact.cutting.uses import Uses
from headroom.vae.exact.operations.graph import Node, Op, Rows
from headroom.vae.exact.operations.leaves import Filled

SHAPE = (1, 1, 4, 4)
CPU = torch.device("cpu")


class Overlapping(Op):
    overlaps = True


class Viewing(Op):
    is_view = True


def drawn(seed: int, count: int) -> tuple[list[Node], list[Node], set[Node]]:
    """Leaves, what is computed of them, and which of it must come out."""
    choose = random.Random(seed)
    leaves = [Node(Filled(SHAPE, 0.0, torch.float32, CPU, 2), (), SHAPE, torch.float32, CPU, Rows(2, 4)) for _ in "ab"]
    computed: list[Node] = []
    for _ in range(count):
        sources = choose.choices([*leaves, *computed[-6:]], k=choose.choice((1, 1, 2)))
        op = choose.choice((Op, Op, Overlapping, Viewing))()
        computed.append(Node(op, sources, SHAPE, torch.float32, CPU, Rows(2, 4)))
    return leaves, computed, {computed[-1], choose.choice(computed)}


def reads(node: Node, wanted: Node, stops: set[Node]) -> bool:
    """Whether a node reads another one, itself or through nodes that are no lines."""
    return any(
        source is wanted or (source not in stops and reads(source, wanted, stops))
        for source in dict.fromkeys(node.sources)
    )


@pytest.mark.parametrize("seed", range(12))
def test_where_each_is_read_last(seed: int) -> None:
    leaves, computed, targets = drawn(seed, 14)
    uses = Uses(computed, targets, leaves)

    def last(wanted: Node, stops: set[Node]) -> list[int]:
        return [place for place, node in enumerate(uses.order) if reads(node, wanted, stops)][-1:]

    of_lines = {node: (last(node, uses.kept) or [place])[0] for place, node in enumerate(uses.order)}
    assert {node: place for place, nodes in uses.last_use.items() for node in nodes} == of_lines
    of_leaves = {node: last(node, set())[0] for node in leaves if last(node, set())}
    assert {node: place for place, nodes in uses.last_read.items() for node in nodes} == of_leaves


def test_a_long_chain_of_sums_is_gone_through_once() -> None:
    """Each node reads the two before it: as many ways through as there are bits, and one walk."""
    leaves, computed, _ = drawn(0, 1)
    for _ in range(3000):
        computed.append(Node(Viewing(), computed[-2:], SHAPE, torch.float32, CPU, Rows(2, 4)))
    assert Uses(computed, {computed[-1]}, leaves).order[-1] is computed[-1]
