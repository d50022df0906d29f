"""The guidance that a Make It Fit plans for, read off the samplers behind it; needs no host.

A plan rests on it: at 1 no negative is computed, which halves what a step takes. So where Make It Fit's ``cfg_source``
is ``graph``, its ``cfg`` is set before the prompt is checked and queued: a change of the sampler's then is a change of
Make It Fit's input, and what the host keeps of an earlier plan does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..formats import as_number
from ..kinds import FIT, GUIDED_SAMPLER, GUIDERS
from ..prompt import Prompt, is_link, links, parents_in, upstream

SOURCE, WIDGET, GRAPH = "cfg_source", "widget", "graph"
MODEL = 0  # the output of Make It Fit that the samplers get
CLIP = "clip"  # begins the names of inputs for a text encoder, which a LoRA has beside its model


def follow_cfg(prompt: Prompt, runs: Callable[[Prompt], Prompt] = lambda prompt: prompt) -> Prompt:
    """A prompt in which each Make It Fit with ``cfg_source`` graph has the cfg of the samplers behind it.

    The largest, where several differ; a link where a sampler's is one. Where nothing behind it is guided by a known
    number, its own value stays.

    Args:
        prompt: in the API format; not changed.
        runs: gives the part of it that runs, whose samplers count.
    """
    asking = [number for number, node in prompt.items() if _asks(node)]
    if not asking:
        return prompt
    running = runs(prompt)
    read = _read_by(running)
    found = {number: _cfg(running, number, read) for number in asking if number in running}
    return prompt | {
        number: {**prompt[number], "inputs": {**prompt[number]["inputs"], "cfg": cfg}}
        for number, cfg in found.items()
        if cfg is not None
    }


def _asks(node: Mapping[str, Any]) -> bool:
    return node["class_type"] == FIT and node["inputs"].get(SOURCE) == GRAPH and "cfg" not in links(node)


def _read_by(prompt: Prompt) -> dict[str, list[tuple[int, str]]]:
    """By node: which of its outputs are read by which nodes, but for what they take as a text encoder."""
    found: dict[str, list[tuple[int, str]]] = {}
    for number, node in prompt.items():
        for origin, slot in (link for name, link in links(node).items() if not name.startswith(CLIP)):
            found.setdefault(origin, []).append((slot, number))
    return found


def _cfg(prompt: Prompt, fit: str, read: Mapping[str, list[tuple[int, str]]]) -> Any:
    """A number, a link, or None where nothing is known."""
    values = list(_values(prompt, fit, read))
    numbers = [one for one in map(as_number, values) if one is not None]
    linked = (one for one in values if is_link(one))
    # The number of a link is known when the prompt runs; it must not wait for what is planned by it.
    free = (one for one in linked if not _depends(prompt, one[0], fit))
    return next(free, max(numbers, default=None))


def _values(prompt: Prompt, fit: str, read: Mapping[str, list[tuple[int, str]]]) -> Iterator[Any]:
    """The cfg of each node that samples with the model or guides with it: a number or a link."""
    pending = [number for slot, number in read.get(fit, ()) if slot == MODEL]
    seen = set(pending)
    while pending:
        number = pending.pop()
        node = prompt[number]
        kind = node["class_type"]
        if "cfg" in node["inputs"]:
            yield node["inputs"]["cfg"]
        elif kind in GUIDERS and not GUIDERS[kind].guided:
            yield 1.0
        elif kind not in (FIT, GUIDED_SAMPLER):  # what comes of a guider that is not known is no model
            behind = {reader: None for _, reader in read.get(number, ()) if reader not in seen}
            pending += behind
            seen.update(behind)


def _depends(prompt: Prompt, number: str, on: str) -> bool:
    try:
        return number == on or on in upstream(number, parents_in(prompt))
    except (ValueError, KeyError):  # a circle, or a node that is not there: the host says so
        return True
