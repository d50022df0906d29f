"""Which latents are sampled behind a Make It Fit, and the part of a prompt that decides their sizes; needs no host.

Make It Fit is given one latent. Where a second sampler behind it works at another size (as after an upscale), the plan
has to hold there too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from ..kinds import FIT, SAMPLERS
from ..prompt import Output, Prompt, is_link, links, parents

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
    given = links(prompt[fit]).get("samples")
    known = given and _passed(prompt, given)
    read: dict[Output, list[str]] = {}
    for number, node in prompt.items():
        for output in links(node).values():
            read.setdefault(output, []).append(number)
    pending, seen, found = list(read.get((fit, MODEL), ())), set[str](), dict[str, Output]()
    while pending:
        number = pending.pop()
        if number in seen or prompt[number]["class_type"] == FIT:  # another one plans for what is behind it
            continue
        seen.add(number)
        linked = links(prompt[number])
        if "latent_image" in linked:
            found[number] = _passed(prompt, linked["latent_image"])
        else:
            pending += [one for (origin, _), some in read.items() if origin == number for one in some]
    return {number: found[number] for number in sorted(found) if found[number] != known}


def latents_alone(prompt: Prompt, asked: Iterable[Output]) -> Prompt:
    """The part of a prompt that makes latents, without samplers, whose latent is as large as the one they get."""
    part: Prompt = {}
    pending = [number for number, _ in asked]
    while pending:
        number = pending.pop()
        if number in part or number not in prompt:
            continue
        node = prompt[number]
        inputs = {
            name: list(_passed(prompt, (value[0], value[1]))) if is_link(value) else value
            for name, value in node["inputs"].items()
        }
        part[number] = {**node, "inputs": inputs}
        pending += parents(part[number])
    return part


def _passed(prompt: Prompt, output: Output) -> Output:
    """Where an output comes from in the end, past the nodes that are left out."""
    seen = set()
    while output[0] in prompt and output[0] not in seen:
        seen.add(output[0])
        node = prompt[output[0]]
        names = PASSED.get(node["class_type"], ())
        further = links(node).get(names[output[1]]) if output[1] < len(names) else None
        if further is None:
            break
        output = further
    return output


def with_sums(prompt: Prompt) -> Prompt:
    """A prompt in which each Make It Fit that has to plan for several latents tells by a sum what decides their sizes,
    so that a change of these is a change of what goes into it.

    Args:
        prompt: in the API format; not changed.
    """
    fits = [number for number, node in prompt.items() if node["class_type"] == FIT]
    behind = {number: found for number in fits if (found := sampled_behind(prompt, number))}
    if not behind:
        return prompt
    return prompt | {
        number: {**prompt[number], "inputs": {**prompt[number]["inputs"], SUM: _sum(prompt, found.values())}}
        for number, found in behind.items()
    }


def _sum(prompt: Prompt, asked: Iterable[Output]) -> str:
    asked = list(asked)
    said = json.dumps([asked, latents_alone(prompt, asked)], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:16]
