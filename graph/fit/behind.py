"""Which latents are sampled behind a Make It Fit, and the part of a prompt that decides their sizes; needs no host.

Make It Fit is given one latent. Where a second sampler behind it works at another size (as after an upscale), the plan
has to hold there too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable

from ..kinds import FIT, SAMPLERS
from ..prompt import Output, Prompt, is_link, links, parents

MOST = 64  # plans of a prompt that are looked at when it is queued
MODEL = 0  # the output of Make It Fit that samplers get
# Of the nodes that are left out: which input has what an output gives, or its size.
PASSED = {FIT: ("model", "vae")} | dict.fromkeys(SAMPLERS, ("latent_image", "latent_image"))
SUM = "headroom_behind"  # of a queued Make It Fit: no input of the node, but the host compares it with the last time's


def sampled_behind(prompt: Prompt, fit: str) -> dict[str, Output]:
    """Where the latents come from that are sampled with a Make It Fit's model, past the samplers that they went through
    before, by the ids of those that sample them; without the one that it is given.

    Args:
        fit: its id.
    """
    source = _sources(prompt)
    given = links(prompt[fit]).get("samples")
    read: dict[str, list[tuple[int, str]]] = {}
    for number, node in prompt.items():
        for origin, slot in links(node).values():
            read.setdefault(origin, []).append((slot, number))
    pending = [number for slot, number in read.get(fit, ()) if slot == MODEL]
    seen, found = set[str](), dict[str, Output]()
    while pending:
        number = pending.pop()
        if number in seen or prompt[number]["class_type"] == FIT:  # another one plans for what is behind it
            continue
        seen.add(number)
        linked = links(prompt[number])
        if "latent_image" in linked:
            found[number] = source(linked["latent_image"])
        else:
            pending += [reader for _, reader in read.get(number, ())]
    known = given and source(given)
    return {number: found[number] for number in sorted(found) if found[number] != known}


def latents_alone(prompt: Prompt, asked: Iterable[Output]) -> Prompt:
    """The part of a prompt that makes latents, without samplers, whose latent is as large as the one they get."""
    source, part = _sources(prompt), Prompt()
    pending = [number for number, _ in asked]
    while pending:
        number = pending.pop()
        if number in part or number not in prompt:
            continue
        node = prompt[number]
        inputs = {
            name: list(source((value[0], value[1]))) if is_link(value) else value
            for name, value in node["inputs"].items()
        }
        part[number] = {**node, "inputs": inputs}
        pending += parents(part[number])
    return part


def _sources(prompt: Prompt) -> Callable[[Output], Output]:
    """Gives where an output comes from in the end, past the nodes that are left out; each is walked once."""
    known: dict[Output, Output] = {}

    def source(output: Output) -> Output:
        way = dict[Output, None]()
        while output not in known and output not in way:
            way[output] = None
            node = prompt.get(output[0])
            names = PASSED.get(node["class_type"], ()) if node else ()
            further = links(node).get(names[output[1]]) if node and 0 <= output[1] < len(names) else None
            if further is None:
                break
            output = further
        end = known.get(output, output)
        known.update(dict.fromkeys(way, end))
        return end

    return source


def with_sums(prompt: Prompt, runs: Callable[[Prompt], Prompt] = lambda prompt: prompt) -> Prompt:
    """A prompt in which each Make It Fit that has to plan for several latents tells by a sum what decides their sizes,
    so that a change of these is a change of what goes into it.

    Args:
        prompt: in the API format; not changed.
        runs: gives the part of it that runs, as the node itself looks at it.
    """
    fits = [number for number, node in prompt.items() if node["class_type"] == FIT][:MOST]
    if not fits:
        return prompt
    running = runs(prompt)
    behind = {number: found for number in fits if number in running and (found := sampled_behind(running, number))}
    if not behind:
        return prompt
    return prompt | {
        number: {**prompt[number], "inputs": {**prompt[number]["inputs"], SUM: _sum(running, found.values())}}
        for number, found in behind.items()
    }


def _sum(prompt: Prompt, asked: Iterable[Output]) -> str:
    asked = list(asked)
    said = json.dumps([asked, latents_alone(prompt, asked)], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:16]
