"""The memory report as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..peak import ALLOCATED
from ..runlog import AttentionCounts, Row
from ..units import format_bytes, format_seconds


@dataclass(frozen=True)
class NodeReport:
    """What the report says of one node.

    Attributes:
        node: its id in the graph.
        title: its display name.
        rows: what it did; empty where nothing of Headroom's ran.
        cached: the rows are of an earlier run whose result the host reused.
    """

    node: str
    title: str
    rows: Sequence[Row]
    cached: bool = False


def render_report(nodes: Sequence[NodeReport], machine: str, settings: Sequence[str] = ()) -> str:
    """The report: a paragraph per measured node, then the nodes nothing was measured of.

    Args:
        nodes: in the order they should appear.
        machine: one line on what it ran.
        settings: lines on the model that was passed in, if one was.
    """
    measured = [node for node in nodes if node.rows]
    others = [node for node in nodes if not node.rows]
    lines = [f"Headroom memory report · {machine}", *settings]
    if not measured:
        lines.append(
            "Nothing before this node was measured: connect it after a sampler whose MODEL comes from a Headroom node,"
            " or after a VAE node behind HeadroomVAE."
        )
    for node in measured:
        lines += ["", *_node_lines(node)]
    if others:
        lines += ["", "Not measured: " + ", ".join(f"#{node.node} {node.title}" for node in others)]
    return "\n".join(lines)


def _node_lines(node: NodeReport) -> list[str]:
    cached = " · cached, earlier run" if node.cached else ""
    lines = [f"#{node.node} {node.title}{cached}"]
    for row in node.rows:
        lines.append("  " + _headline(row))
        if row.paged is not None:
            kept = format_bytes(row.paged)
            lines.append(f"    beside that peak dynamic VRAM kept {kept} of its weights on the device")
        lines += [f"    {line}" for line in _work_lines(row)]
        if row.peak is not None and row.peak.history:
            lines.append(f"    allocator: {row.peak.history}")
        lines += [f"    {line}" for line in row.lines]
        if row.attention is not None:
            lines += [f"    {line}" for line in attention_lines(row.attention)]
        lines += [f"    ! {notice}" for notice in row.notices]
    return lines


def _headline(row: Row) -> str:
    parts = [row.work if row.outcome == "done" else f"{row.work} ({row.outcome})"]
    if row.seconds is not None:
        parts.append(f"{row.seconds:.2f} s")
    if row.peak is not None:
        parts.append(
            f"peak {format_bytes(row.peak.highest)}"
            f" (+{format_bytes(row.peak.growth)} over its start; {row.peak.source})"
        )
    return " · ".join(parts)


def _work_lines(row: Row) -> Iterable[str]:
    """What the work took beyond the weights, and how long, beside what was predicted."""
    if row.step_seconds:
        expected = f" · predicted {format_seconds(row.expected)}" if row.expected else ""
        off = _off(row.expected, row.step_seconds, 0) if row.expected else ""
        yield f"{row.steps} calls of the model, {format_seconds(row.step_seconds)} each{expected}{off}"
    if row.live is None:
        return
    measured = f"beyond the weights {format_bytes(row.live)}"
    if row.streams:
        measured = f"beyond the weights that stay {format_bytes(row.live)}, copies of the others included"
    if row.predicted is None:
        yield measured
        return
    # A CPU's tensors are followed one by one; a device's allocator counts what kernels hold as well.
    predicted = row.predicted.activations if _by_allocator(row) else row.predicted.live
    off = _off(predicted, row.live, 1) if row.live else ""
    if row.predicted.bound:  # of tensors alone a plan, which counts kernels' scratch, is a bound
        yield f"{measured} · planned {format_bytes(predicted)}{off if _by_allocator(row) else ' at most'}"
        return
    if row.streams:
        yield f"{measured} · predicted {format_bytes(predicted)} without the copies"
        return
    yield f"{measured} · predicted {format_bytes(predicted)}{off}"


def _off(predicted: float, measured: float, digits: int) -> str:
    """As ", 3.1% more", ", 12% less", or ", the same" where that rounds to nothing."""
    share = round(predicted / measured - 1, digits + 2)
    return f", {abs(share):.{digits}%} {'more' if share > 0 else 'less'}" if share else ", the same"


def _by_allocator(row: Row) -> bool:
    return row.peak is not None and row.peak.source.startswith(ALLOCATED)


def attention_lines(counts: AttentionCounts) -> list[str]:
    """One line per backend and reason, with the blocks it ran in; a warning when no call arrived."""
    calls = counts.snapshot()
    if not calls:
        return [
            "! attention: 0 calls reached HeadroomAttention. This model computes attention where no node can choose it,"
            " or another node took its place: put HeadroomAttention after that."
        ]
    grouped: defaultdict[tuple[str, str], list[tuple[tuple[str, int] | None, int]]] = defaultdict(list)
    for key, count in calls.items():
        grouped[key.backend, key.reason].append((key.block, count))
    lines = [f"attention: {sum(calls.values())} calls"]
    for (backend, reason), blocks in grouped.items():
        where = _block_ranges(block for block, _ in blocks)
        lines.append(f"  {backend}: {sum(n for _, n in blocks)} calls in {where} ({reason})")
    if all(key.block is None for key in calls):
        lines.append("  This model does not say which block calls; only blocks = all can select it.")
    lines.append("  Text encoders, ControlNets and VAEs have attention of their own, not counted here.")
    return lines


def _block_ranges(blocks: Iterable[tuple[str, int] | None]) -> str:
    """Blocks as compact ranges: input:1-2,4, middle."""
    indices: defaultdict[str, set[int]] = defaultdict(set)
    unnamed = False
    for block in blocks:
        if block is None:
            unnamed = True
        else:
            indices[block[0]].add(block[1])
    parts = [f"{kind}:{_ranges(sorted(found))}" for kind, found in indices.items()]
    return ", ".join(parts + ["unnamed blocks"] * unnamed)


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
